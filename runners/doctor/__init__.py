"""What ``latfix doctor`` looks at: one module an area, each a function that returns findings and changes nothing."""

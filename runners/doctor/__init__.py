"""The checks of ``latfix doctor``: one module per area. Each returns findings and changes nothing."""

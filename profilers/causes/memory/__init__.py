"""The heap and its pages."""

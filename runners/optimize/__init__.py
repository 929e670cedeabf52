"""The search for fixes and its proof."""

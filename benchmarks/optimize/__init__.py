"""The search: its plans compared with single changes, on samples and on pretrained models."""

"""A loaded service: model instances with the settings applied, warmed up."""

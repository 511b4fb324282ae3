"""What a training run is: the values, their table of fields, the TOML file and the flags."""

"""Settings: of the server (server.json, flags, environment) and of each model (model_settings.json)."""

from .server import ServerSettings, add_setting_arguments, environment_name, flag_name, read_settings

__all__ = ["ServerSettings", "add_setting_arguments", "environment_name", "flag_name", "read_settings"]

"""Configuration file: settings in TOML, as texts that flags could have as well."""

import tomllib
from collections.abc import Iterable

from lightrail.model.setting_values import SettingsError


def read(path: str, known: Iterable[str]) -> dict[str, str]:
    """The text of each setting in the file. Raises SettingsError, as for an unknown key."""
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"the configuration file {path} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the configuration file {path} is not TOML: {error}") from None
    allowed = list(known)
    for key in table:
        if key not in allowed:
            raise SettingsError(
                f"{path} sets {key!r}, which is no setting; settings are " + ", ".join(allowed)
            )
    return {key: _text(key, value, path) for key, value in table.items()}


def _text(key: str, value: object, path: str) -> str:
    """A TOML value as a flag would spell it, so that each setting is parsed in one place."""
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case list() if all(isinstance(item, str) for item in value):
            return ",".join(value)
    raise SettingsError(f"{key} in {path} is {value!r}; expected a string, a number, or true or false")

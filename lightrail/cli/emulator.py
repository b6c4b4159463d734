"""``lightrail emulator``: a broker in the place of the emulator of Azure Service Bus, with its ports.

It is `serve` with other defaults, and with the entities of a Config.json. Variables of the emulator's image
are read: EMULATOR_HTTP_PORT, and ACCEPT_EULA=Y, by which its users say that they know what it is: a broker
for development that lets everybody in who reaches its ports, while no user is defined. SQL_SERVER and
MSSQL_SA_PASSWORD mean nothing here.
"""

import argparse
import os
from collections.abc import Mapping
from typing import Any, Final

from lightrail.cli.serve import Variant, serve
from lightrail.model.setting_values import SettingsError
from lightrail.model.settings import VARIABLE_PREFIX, Settings, names
from lightrail.service_bus.development import CONFIG_OF_IMAGE, KEY, KEY_NAME

UP: Final = "Emulator Service is Successfully Up!"
"""The line for which programs that start the emulator wait."""
DEFAULTS: Final = {"amqp": "127.0.0.1:5672", "http": "127.0.0.1:5300", "auto_create": "false"}
"""As the emulator's: its ports, and no name but those that were made. Others are those of `serve`."""
OPEN: Final = {"insecure_no_users": "true", "plain_without_tls": "true"}
"""With ACCEPT_EULA=Y."""
HINT: Final = "; or set ACCEPT_EULA=Y: then everybody who reaches these ports may do everything"
PORT_MAX: Final = 65_535
AMQP_PORT: Final = 5_672


def run(parsed: argparse.Namespace) -> int:
    """Runs the broker; returns the exit status. Raises SettingsError."""
    settings = settings_of(vars(parsed), os.environ)
    variant = Variant("emulator", greeting, ready=UP, hint=HINT)
    return serve(settings, as_json=parsed.json, variant=variant)


def settings_of(given: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """The settings of the command, by its flags and variables. Raises SettingsError."""
    flags = {name: given[name] for name in names() if name in given}
    defaults = dict(DEFAULTS)
    if environ.get("ACCEPT_EULA", "").strip().upper() == "Y":
        defaults |= OPEN
    if given.get("config"):
        flags["service_bus_config"] = given["config"]
    elif os.path.exists(CONFIG_OF_IMAGE):
        defaults["service_bus_config"] = CONFIG_OF_IMAGE
    port = environ.get("EMULATOR_HTTP_PORT", "").strip()
    if port and "http" not in flags:
        if not port.isascii() or not port.isdigit() or not 0 < int(port) <= PORT_MAX:
            raise SettingsError(
                f"the variable EMULATOR_HTTP_PORT is {port[:80]!r}; expected a port from 1 to {PORT_MAX}"
            )
        host = environ.get(VARIABLE_PREFIX + "HTTP", DEFAULTS["http"]).rpartition(":")[0]
        flags["http"] = f"{host}:{port}"
    return Settings.load(flags=flags, environ=environ, config=given.get("settings"), defaults=defaults)


def greeting(settings: Settings, has_users: bool) -> str:
    """The line that the emulator logs, the addresses, and the connection strings."""
    amqp, http = settings.amqp.reachable, settings.http.reachable
    name, key = ("NAME", "KEY") if has_users else (KEY_NAME, KEY)
    by_key = f"SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true;"
    endpoint = amqp.host if amqp.port == AMQP_PORT else str(amqp)
    lines = [
        UP,
        "",
        f"  AMQP 1.0        amqp://{amqp}",
        f"  administration  http://{http}/  (health at /health, pages at /!ui)",
        f"  data            {settings.data}",
        f"  configuration   {settings.service_bus_config or 'none: see --config'}",
        "",
        f"  Endpoint=sb://{endpoint};{by_key}",
        f"  Endpoint=sb://{http};{by_key}  (administration)",
        "",
    ]
    if has_users:
        lines.insert(-1, "  NAME and KEY: lightrail-admin key make")
    return "\n".join(lines)

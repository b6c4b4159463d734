"""The development key: that of the connection string with which everybody uses the emulator of Service Bus.

    Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;...

It is no secret, so that it opens nothing by itself: a signature by it is good where clients have all rights
without one, since no user is defined and they are on this machine, or insecure_no_users is set.
"""

from typing import Final

from lightrail.service_bus.signatures import Signature

KEY_NAME: Final = "RootManageSharedAccessKey"
KEY: Final = "SAS_KEY_VALUE"
CONFIG_OF_IMAGE: Final = "/ServiceBus_Emulator/ConfigFiles/Config.json"
"""Where the emulator's image has its configuration."""


def made(found: Signature) -> bool:
    """Whether the development key made a signature."""
    return found.name == KEY_NAME and found.verify(KEY)

"""Rights: the checks that requests and pages share, each against the newest directory."""

from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name, Right
from lightrail.namespace.rights import Caller, demand, demand_look


def demand_all(directory: Directory, caller: Caller) -> None:
    """Raises ForbiddenError unless the caller may manage all names."""
    directory.refresh()
    demand(directory, caller, Right.MANAGE, directory.get(""))


def demand_name(directory: Directory, caller: Caller, name: str, right: Right) -> Name:
    """The record of a name. Raises ForbiddenError without the right; managers may listen, too."""
    directory.refresh()
    record = directory.get(name)
    if right is Right.LISTEN:
        demand_look(directory, caller, record)
    else:
        demand(directory, caller, right, record)
    return record

"""Runs servers and owners as processes that talk over gRPC, with certificates, records on disk and metrics."""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.secure.service import certificates as certificates
    from dpaudit.secure.service.owner import Owner as Owner
    from dpaudit.secure.service.records import Opened as Opened
    from dpaudit.secure.service.server import Server as Server

__getattr__, __dir__, __all__ = attach(__name__)

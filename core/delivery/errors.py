"""What can go wrong while a delivery is made. Messages are Chinese: the command prints them as they are.

DeliveryError
 +- DeliveryRefused   an argument or a given file does not fit; exit code 2
 +- DeliveryFailed    pip, the network or the disk; exit code 1
"""

from __future__ import annotations


class DeliveryError(Exception):
    """Base of both."""


class DeliveryRefused(DeliveryError):
    pass


class DeliveryFailed(DeliveryError):
    pass

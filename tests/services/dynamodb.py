"""A DynamoDB for the tests: moto's server, which speaks to the real boto3 over real HTTP.

It holds an item to 400 KB, as the service does. It is no DynamoDB.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from .owner import UnavailableError

REGION = "eu-west-1"


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Give the URL of an emulator that runs in threads of this process."""
    try:
        from moto.server import ThreadedMotoServer
    except ImportError as error:
        raise UnavailableError("no DynamoDB: moto[server] is not installed") from error
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs every request
    emulator = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    emulator.start()
    try:
        host, port = emulator.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        emulator.stop()


def session() -> Any:
    """Give a session with made-up keys: nothing of the machine's own is looked up."""
    import boto3

    return boto3.Session("testing", "testing", region_name=REGION)


def make_table(url: str, name: str) -> None:
    """Make a table as `DynamoDBSaver` wants it."""
    client = session().client("dynamodb", endpoint_url=url)
    keys = [("PK", "HASH"), ("SK", "RANGE")]
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": key, "KeyType": kind} for key, kind in keys],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key, _ in keys],
        BillingMode="PAY_PER_REQUEST",
    )

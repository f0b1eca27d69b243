"""An S3 server in this process, with an empty bucket called `data`."""

import contextlib

KEYS = {"key": "generated", "secret": "generated"}


@contextlib.contextmanager
def served():
    """Run the server during a `with` block, and yield its URL."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    names = {"aws_access_key_id": KEYS["key"], "aws_secret_access_key": KEYS["secret"], "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=address, **names)
    client.create_bucket(Bucket="data")
    try:
        yield address
    finally:
        client.close()
        server.stop()

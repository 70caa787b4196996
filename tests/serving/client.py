"""A client of the REST server."""

import base64
import http.client
import json


def as_base64(file):
    """Returns the bytes of a file as JSON, in the format of TensorFlow Serving."""
    return {"b64": base64.b64encode(file).decode()}


class Client:
    """A client with one keep-alive connection. The context manager closes the connection."""

    def __init__(self, server):
        self.server = server
        self.connection = http.client.HTTPConnection("localhost", server.port, timeout=120)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def post(self, method, **body):
        """Sends a request to `/v1/models/<name>:<method>` and returns the status and JSON of the
        response."""
        path = f"/v1/models/{self.server.model_name}:{method}"
        self.connection.request("POST", path, json.dumps(body))
        response = self.connection.getresponse()
        return response.status, json.loads(response.read())

    def predict_successfully(self, **body):
        """Sends a request that must succeed, and returns the JSON of the response."""
        status, response = self.post("predict", **body)
        assert status == 200, response
        return response

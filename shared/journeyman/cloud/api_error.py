"""The error of a request to a cloud whose SDK has no error that fits (`OpenApiError`, `RestApiError`)."""


class CloudApiError(Exception):
    """A service refused a request, or did not answer it.

    Attributes:
        code: The service's error code; empty if there was no answer.
        status: The HTTP status; 0 if there was no answer.
        request_id: The service's id of the request; empty if there was no answer.
    """

    def __init__(self, code: str, message: str, *, status: int = 0, request_id: str = "") -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.code = code
        self.message = message
        self.status = status
        self.request_id = request_id

"""Credentials with the access keys of simulated accounts."""

from journeyman.signing import Credentials


def credentials_of(key):
    """Return the credentials of an access key of a simulated account."""
    return Credentials(access_key_id=key.id, access_key_secret=key.secret, security_token=key.security_token)

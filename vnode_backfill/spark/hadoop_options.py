"""The storage options of a job in Spark's own words, so that credentials are written down once.

`storage.options` has the names delta-rs knows; everything that reads or writes files from Python takes them as they
are. Where Spark SQL reads a table it goes through Hadoop's file systems, whose names for the same things are others.
What has no counterpart there is left out; settings given to Spark directly always win.
"""

from __future__ import annotations

from collections.abc import Mapping

_S3A = "spark.hadoop.fs.s3a"
_S3 = {
    "access_key_id": f"{_S3A}.access.key",
    "secret_access_key": f"{_S3A}.secret.key",
    "session_token": f"{_S3A}.session.token",
    "endpoint": f"{_S3A}.endpoint",
    "endpoint_url": f"{_S3A}.endpoint",
    "region": f"{_S3A}.endpoint.region",
    "default_region": f"{_S3A}.endpoint.region",
}
_GCS = ("google_service_account", "google_service_account_path", "google_application_credentials")


def hadoop_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Settings of a Spark session that give it the access these options give."""
    given = {name.lower(): value for name, value in options.items()}
    return {**_s3(given), **_azure(given), **_gcs(given)}


def _s3(given: Mapping[str, str]) -> dict[str, str]:
    told = {name.removeprefix("aws_"): value for name, value in given.items() if name.startswith("aws_")}
    if not told:
        return {}
    settings = {_S3[name]: value for name, value in told.items() if name in _S3}
    if "session_token" in told:
        provider = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
        settings[f"{_S3A}.aws.credentials.provider"] = provider
    if f"{_S3A}.endpoint" in settings and told.get("virtual_hosted_style_request", "false") != "true":
        settings[f"{_S3A}.path.style.access"] = "true"
    # delta-rs speaks of s3://, Hadoop of s3a://; both mean the same store.
    return {**settings, "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}


def _azure(given: Mapping[str, str]) -> dict[str, str]:
    told = {
        name.removeprefix("azure_").removeprefix("storage_"): value for name, value in given.items() if "azure" in name
    }
    name, key = told.get("account_name"), told.get("account_key") or told.get("access_key")
    return {f"spark.hadoop.fs.azure.account.key.{name}.dfs.core.windows.net": key} if name and key else {}


def _gcs(given: Mapping[str, str]) -> dict[str, str]:
    path = next((given[name] for name in _GCS if name in given), None)
    if path is None:
        return {}
    auth = "spark.hadoop.google.cloud.auth"
    return {f"{auth}.service.account.enable": "true", f"{auth}.service.account.json.keyfile": path}

"""Options of an object store, written once, in the words of both libraries."""

from __future__ import annotations

from vnode_backfill.spark.hadoop_options import hadoop_settings

S3A = "spark.hadoop.fs.s3a"


def test_no_options_make_no_settings() -> None:
    assert hadoop_settings({}) == {}


def test_a_store_that_speaks_s3_is_reached_by_its_own_address() -> None:
    found = hadoop_settings(
        {
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "aws_endpoint_url": "http://minio:9000",
            "AWS_REGION": "x",
        }
    )
    assert found == {
        f"{S3A}.access.key": "a",
        f"{S3A}.secret.key": "b",
        f"{S3A}.endpoint": "http://minio:9000",
        f"{S3A}.endpoint.region": "x",
        f"{S3A}.path.style.access": "true",
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    }


def test_a_session_token_comes_with_the_provider_that_takes_it() -> None:
    found = hadoop_settings({"AWS_SESSION_TOKEN": "t"})
    assert found[f"{S3A}.session.token"] == "t"
    assert found[f"{S3A}.aws.credentials.provider"].endswith("TemporaryAWSCredentialsProvider")


def test_an_azure_account_is_named_in_its_key() -> None:
    found = hadoop_settings({"AZURE_STORAGE_ACCOUNT_NAME": "shop", "AZURE_STORAGE_ACCOUNT_KEY": "k"})
    assert found == {"spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net": "k"}


def test_a_google_key_file_is_given_by_its_path() -> None:
    found = hadoop_settings({"GOOGLE_SERVICE_ACCOUNT": "/run/key.json"})
    assert found["spark.hadoop.google.cloud.auth.service.account.json.keyfile"] == "/run/key.json"

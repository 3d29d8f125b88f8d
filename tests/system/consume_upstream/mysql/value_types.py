"""Every type of the source with its values: those that lie at a limit, are empty, or are written in their own way.

A type is a tuple: its declaration, then literals of SQL. `ALL_TYPES` are the columns of the table that whole jobs copy.
"""

from __future__ import annotations

Types = tuple[tuple[str, ...], ...]

NUMBERS = (
    ("TINYINT", "-128", "127", "0"),
    ("TINYINT UNSIGNED", "0", "255", "128"),
    ("SMALLINT", "-32768", "32767"),
    ("SMALLINT UNSIGNED", "0", "65535"),
    ("MEDIUMINT", "-8388608", "8388607", "-1"),
    ("MEDIUMINT UNSIGNED", "0", "16777215"),
    ("INT", "-2147483648", "2147483647"),
    ("INT UNSIGNED ZEROFILL", "0", "4294967295"),
    ("BIGINT", "-9223372036854775808", "9223372036854775807"),
    ("BIGINT UNSIGNED", "0", "18446744073709551615", "9223372036854775808"),
    ("DECIMAL(1,0)", "-9", "9", "0"),
    ("DECIMAL(4,4)", "-0.9999", "0.0001"),
    ("DECIMAL(9,2)", "-9999999.99", "0.01"),
    ("DECIMAL(18,0)", "-999999999999999999", "999999999999999999"),
    ("DECIMAL(19,9)", "-9999999999.999999999", "0.000000001"),
    ("DECIMAL(38,0)", "-" + "9" * 38, "9" * 38, "1"),
    ("DECIMAL(38,30)", "-99999999." + "9" * 30, "0." + "0" * 29 + "1"),
    ("DECIMAL(39,5)", "-" + "9" * 34 + ".99999", "0.00001", "0"),
    ("DECIMAL(65,30)", "-" + "9" * 35 + "." + "9" * 30, "1.5"),
    ("DECIMAL(65,0)", "9" * 65, "-1"),
    ("FLOAT", "-3.4028235e38", "1.1754944e-38", "0.1", "16777217"),
    ("DOUBLE", "-1.7976931348623157e308", "5e-324", "0.1", "-0.0"),
    ("BIT(1)", "b'0'", "b'1'"),
    ("BIT(8)", "b'0'", "b'11111111'"),
    ("BIT(13)", "b'1'", "b'1000000000001'"),
    ("BIT(64)", "b'0'", "b'1" + "0" * 62 + "1'"),
)
TIMES = (
    ("DATE", "'0001-01-01'", "'9999-12-31'", "'1970-01-01'", "'2000-02-29'", "'1900-03-01'"),
    ("DATETIME", "'0001-01-01 00:00:00'", "'9999-12-31 23:59:59'"),
    ("DATETIME(1)", "'1969-12-31 23:59:59.9'", "'2024-02-29 12:00:00.1'"),
    ("DATETIME(3)", "'1969-12-31 23:59:59.999'", "'2024-02-29 12:00:00.001'"),
    ("DATETIME(6)", "'1000-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.499999'"),
    ("TIMESTAMP NULL", "'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'"),
    ("TIMESTAMP(2) NULL", "'1970-01-01 00:00:01.01'", "'2038-01-19 03:14:07.99'"),
    ("TIMESTAMP(6) NULL", "'1970-01-01 00:00:01.000001'", "'2038-01-19 03:14:07.999999'"),
    ("TIME", "'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:01'"),
    ("TIME(1)", "'-00:00:00.1'", "'12:34:56.7'"),
    ("TIME(3)", "'-838:59:58.999'", "'838:59:58.001'"),
    ("TIME(4)", "'-00:00:00.0001'", "'00:00:00.9999'"),
    ("TIME(6)", "'-00:00:00.000001'", "'838:59:58.999999'", "'-12:00:00'"),
    ("YEAR", "1901", "2155", "0"),
)
TEXTS = (
    ("CHAR(5)", "''", "'ab  '", "'ä€😀xy'", "'  x'"),
    ("CHAR(0)", "''"),
    ("CHAR(255)", "REPEAT('€', 255)", "''"),
    ("VARCHAR(10)", "''", "'ab  '", "REPEAT('😀', 10)"),
    ("VARCHAR(1000)", "REPEAT('x', 1000)", "'é'"),
    ("CHAR(20) CHARACTER SET latin1", "'aé€ '", "_latin1 x'8081FF'"),
    ("VARCHAR(40) CHARACTER SET latin1", "'Grüße'", "_latin1 x'818D8F909DA0'", "''"),
    ("VARCHAR(20) CHARACTER SET utf8mb3", "'äöü€'", "''"),
    ("VARCHAR(20) CHARACTER SET ascii", "'plain'", "''"),
    ("VARCHAR(20) CHARACTER SET ucs2", "'aä€'", "''"),
    ("CHAR(20) CHARACTER SET utf16", "'aä€😀'", "''"),
    ("VARCHAR(20) CHARACTER SET utf32", "'aä€😀'", "''"),
    ("VARCHAR(20) CHARACTER SET sjis", "'日本語ｱ'", "_sjis x'815F'"),
    ("VARCHAR(20) CHARACTER SET gbk", "'中文'", "''"),
    ("VARCHAR(20) CHARACTER SET koi8r", "'Привет'", "''"),
    ("VARCHAR(20) CHARACTER SET greek", "'αβγ'", "_greek x'A1A2A4'"),
    ("TINYTEXT", "''", "REPEAT('t', 255)"),
    ("TEXT", "''", "REPEAT('ä', 30000)"),
    ("MEDIUMTEXT", "'m'", "REPEAT('m', 70000)"),
    ("LONGTEXT", "'l'", "REPEAT('l', 100000)"),
    ("BINARY(4)", "x'00000000'", "x'01020000'", "x'FFFFFFFF'", "''"),
    ("BINARY(255)", "x'01'", "REPEAT(x'00', 255)"),
    ("VARBINARY(300)", "''", "x'000100'", "REPEAT(x'FE', 300)"),
    ("TINYBLOB", "''", "x'00'"),
    ("BLOB", "''", "REPEAT(x'00FF', 20000)"),
    ("LONGBLOB", "x'FF'", "REPEAT(x'01', 70000)"),
    ("ENUM('a','b''c','€','')", "'a'", "'b''c'", "'€'", "4"),
    ("ENUM(" + ",".join(f"'l{i}'" for i in range(300)) + ")", "'l0'", "'l299'"),
    ("SET('a','b','c d')", "''", "'a,c d'", "'a,b,c d'"),
    ("SET(" + ",".join(f"'s{i}'" for i in range(64)) + ")", "'s0,s63'", "'s31,s32'"),
    ("GEOMETRY", "ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('LINESTRING(0 0, 1 1)', 4326)"),
    ("POINT", "ST_GeomFromText('POINT(-1 2.5)')"),
)  # fmt: skip
DOCUMENTS = (
    "'null'", "'true'", "'[]'", "'{}'", "'1'", "'-32769'", "'65536'", "'-2147483649'", "'4294967296'",
    "'18446744073709551615'", "'1.5'", "'1e300'", "'0.1'", "'\"ä\\\\u0001 \\\\\"😀\\\\\\\\/\"'",
    "'{\"b\": 1, \"a\": [1, 2, {\"c\": null}], \"aa\": -1.25}'",
    "CONCAT('[', REPEAT('12345678,', 30000), '1]')", "CONCAT('{\"k\": \"', REPEAT('x', 70000), '\"}')",
)  # fmt: skip
MYSQL_DOCUMENTS = (
    "JSON_ARRAY(CAST(1.50 AS DECIMAL(10,2)), CAST('-0.001' AS DECIMAL(30,10)), 1.0)",
    "JSON_ARRAY(CAST('2024-02-29' AS DATE), CAST('-838:59:59' AS TIME(6)), CAST('2024-02-29 01:02:03.000004' AS DATETIME(6)))",
    "JSON_ARRAY(x'CAFE', b'101', CAST(18446744073709551615 AS UNSIGNED), 1e0, -0e0, 1e16, 123456789012345e0)",
)  # fmt: skip
MARIADB_ONLY = (
    ("UUID", "'00112233-4455-1677-8899-aabbccddeeff'", "'00112233-4455-7677-8899-aabbccddee00'",
     "'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-4fff-bfff-ffffffffffff'",
     "'123e4567-e89b-12d3-a456-426614174000'"),
    ("INET6", "'::'", "'::1'", "'2001:db8::ff00:42:8329'", "'::ffff:192.0.2.1'", "'::1.2.3.4'", "'1:0:0:2:0:0:0:3'",
     "'fe80::'",
     "'1:2:3:4:5:6:7:8'", "'0:1:2:3:4:5:6:7'", "'::2:3'", "'::ffff:0:1.2.3.4'", "'0:0:0:0:0:fffe:1:1'",
     "'1:2:0:4:5:6:7:8'", "'1:0:3:0:5:6:7:0'", "'0:0:1:0:0:1:0:0'", "'0:0:0:0:1:2:3:4'", "'::ffff:0:0'"),
    ("INET4", "'0.0.0.0'", "'255.255.255.255'", "'192.168.0.0'"),
)  # fmt: skip
MORE_BITS = tuple((f"BIT({width})", "b'1'", f"b'1{'0' * (width - 1)}'") for width in (2, 7, 9, 16, 33, 63))
MORE_CHARSETS = (
    ("VARCHAR(20) CHARACTER SET utf16le", "'aä€😀'", "''"),
    ("VARCHAR(20) CHARACTER SET cp1251", "'Привет'", "''"),
    ("VARCHAR(20) CHARACTER SET latin2", "'Žluť'", "''"),
    ("VARCHAR(20) CHARACTER SET euckr", "'한국어'", "''"),
    ("VARCHAR(20) CHARACTER SET ujis", "'日本語'", "''"),
    ("VARCHAR(20) CHARACTER SET cp932", "'日本語①'", "''"),
)
ZERO_DATES = (
    ("DATE", "'0000-00-00'", "'2024-00-15'", "'2024-02-29'"),
    ("DATETIME(3)", "'0000-00-00'", "'2024-02-00 01:02:03.004'", "'2024-02-29 01:02:03.004'"),
    ("TIMESTAMP NULL", "'0000-00-00'", "'2024-02-29 01:02:03'"),
)
LABELS = (
    ("ENUM('it''s','c\\\\d','i\\nj','a,b',' x','')", "1", "2", "3", "4", "5", "6"),
    ("SET('it''s','c\\\\d','i\\nj','',' x')", "1", "2", "4", "8", "31", "0"),
    ("ENUM('ä','€') CHARACTER SET latin1", "1", "2"),
    ("SET('中','文') CHARACTER SET gbk", "1", "3"),
    ("ENUM('é','€') CHARACTER SET ucs2", "1", "2"),
)
LABELS_BEYOND_THE_BMP = (
    ("ENUM('x','😀','?','a😀b')", "1", "2", "3", "4"),
    ("SET('x','😀','?','a😀b')", "1", "2", "7", "15"),
    ("ENUM('😀','?') CHARACTER SET utf16", "1", "2"),
)
"""MySQL needs `binlog_row_metadata = FULL` for these."""
GEOMETRIES = (
    ("LINESTRING", "ST_GeomFromText('LINESTRING(0 0, 1 1, 2 0.5)')"),
    ("POLYGON", "ST_GeomFromText('POLYGON((0 0, 1 0, 1 1, 0 0))')"),
    ("MULTIPOINT", "ST_GeomFromText('MULTIPOINT(0 0, 1 1)')"),
    ("MULTILINESTRING", "ST_GeomFromText('MULTILINESTRING((0 0, 1 1), (2 2, 3 3))')"),
    ("MULTIPOLYGON", "ST_GeomFromText('MULTIPOLYGON(((0 0, 1 0, 1 1, 0 0)))')"),
    ("GEOMETRYCOLLECTION", "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2), LINESTRING(0 0, 1 1))')"),
)
LARGE = (("MEDIUMBLOB", "REPEAT(x'00FF', 1000000)", "''"),)
GENERATED = (("INT AS (id + 1) VIRTUAL",), ("INT AS (id * 2) STORED",))
"""They have no literals: the server computes them."""


def all_types(flavour: str, metadata: str) -> Types:
    """Every type that a server of the flavour has, for a log of which `binlog_row_metadata` is `metadata`."""
    documents = DOCUMENTS + (MYSQL_DOCUMENTS if flavour == "mysql" else ())
    exact_labels = flavour == "mariadb" or metadata == "FULL"
    return (
        *NUMBERS, *MORE_BITS, *TIMES, *ZERO_DATES, *TEXTS, *MORE_CHARSETS, *LABELS,
        *(LABELS_BEYOND_THE_BMP if exact_labels else ()), *GEOMETRIES, *LARGE, ("JSON", *documents),
        *(MARIADB_ONLY if flavour == "mariadb" else ()), *GENERATED,
    )  # fmt: skip

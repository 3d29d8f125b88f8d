"""Makes a database of the shapes of a widely used sample database: sixteen tables of a shop that rents films.

Two views are between them, and triggers write to a second table. There are foreign keys that restrict and that cascade,
also in a circle, SET, ENUM, YEAR, geometry, BLOB, a fulltext index, generated columns, and composite keys.
"""

from __future__ import annotations

import re
from random import Random

from devkit.mysql import SqlServer
from tests.system.job_case import execute

__all__ = ["KEYS", "create_rental_shop", "rekey", "rent"]

KEYS: dict[str, tuple[str, ...]] = {
    **{
        name: (f"{name}_id",)
        for name in (
            "actor", "category", "language", "country", "city", "address", "film", "store", "staff", "customer",
            "inventory", "rental", "payment",
        )
    },
    "film_text": ("film_id",), "film_actor": ("actor_id", "film_id"), "film_category": ("film_id", "category_id"),
}  # fmt: skip
FILMS = 300
_TABLES = """
CREATE TABLE actor (actor_id SMALL AUTO_INCREMENT PRIMARY KEY, first_name VARCHAR(45) NOT NULL,
    last_name VARCHAR(45) NOT NULL, STAMP, KEY (last_name));
CREATE TABLE category (category_id TINY AUTO_INCREMENT PRIMARY KEY, name VARCHAR(25) NOT NULL, STAMP);
CREATE TABLE language (language_id TINY AUTO_INCREMENT PRIMARY KEY, name CHAR(20) NOT NULL, STAMP);
CREATE TABLE country (country_id SMALL AUTO_INCREMENT PRIMARY KEY, country VARCHAR(50) NOT NULL, STAMP);
CREATE TABLE city (city_id SMALL AUTO_INCREMENT PRIMARY KEY, city VARCHAR(50) NOT NULL, country_id SMALL, STAMP,
    FOREIGN KEY (country_id) REFERENCES country (country_id) CASCADES);
CREATE TABLE address (address_id SMALL AUTO_INCREMENT PRIMARY KEY, address VARCHAR(50) NOT NULL, address2 VARCHAR(50),
    city_id SMALL, location GEOMETRY NOT NULL, STAMP, SPATIAL KEY (location),
    FOREIGN KEY (city_id) REFERENCES city (city_id) CASCADES);
CREATE TABLE film (film_id SMALL AUTO_INCREMENT PRIMARY KEY, title VARCHAR(128) NOT NULL, description TEXT,
    release_year YEAR, language_id TINY, rental_rate DECIMAL(4,2) NOT NULL DEFAULT 4.99, length SMALLINT UNSIGNED,
    rating ENUM('G','PG','PG-13','R','NC-17') DEFAULT 'G',
    special_features SET('Trailers','Commentaries','Deleted Scenes','Behind the Scenes'),
    hours DECIMAL(6,2) GENERATED ALWAYS AS (length / 60) STORED, STAMP,
    FOREIGN KEY (language_id) REFERENCES language (language_id) CASCADES);
CREATE TABLE film_actor (actor_id SMALL, film_id SMALL, STAMP, PRIMARY KEY (actor_id, film_id),
    FOREIGN KEY (actor_id) REFERENCES actor (actor_id) CASCADES,
    FOREIGN KEY (film_id) REFERENCES film (film_id) CASCADES);
CREATE TABLE film_category (film_id SMALL, category_id TINY, STAMP, PRIMARY KEY (film_id, category_id),
    FOREIGN KEY (film_id) REFERENCES film (film_id) CASCADES);
CREATE TABLE film_text (film_id SMALLINT NOT NULL PRIMARY KEY, title VARCHAR(255) NOT NULL, description TEXT,
    FULLTEXT KEY (title, description));
CREATE TABLE store (store_id TINY AUTO_INCREMENT PRIMARY KEY, manager_id TINY, STAMP, UNIQUE KEY (manager_id));
CREATE TABLE staff (staff_id TINY AUTO_INCREMENT PRIMARY KEY, first_name VARCHAR(45) NOT NULL, picture BLOB,
    store_id TINY, active BOOLEAN NOT NULL DEFAULT TRUE, STAMP,
    FOREIGN KEY (store_id) REFERENCES store (store_id) CASCADES);
CREATE TABLE customer (customer_id SMALL AUTO_INCREMENT PRIMARY KEY, store_id TINY, first_name VARCHAR(45) NOT NULL,
    last_name VARCHAR(45) NOT NULL, create_date DATETIME NOT NULL,
    full_name VARCHAR(91) GENERATED ALWAYS AS (CONCAT(first_name, ' ', last_name)) VIRTUAL, STAMP,
    FOREIGN KEY (store_id) REFERENCES store (store_id) CASCADES);
CREATE TABLE inventory (inventory_id MEDIUMINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, film_id SMALL,
    store_id TINY, STAMP, FOREIGN KEY (film_id) REFERENCES film (film_id) CASCADES);
CREATE TABLE rental (rental_id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, rental_date DATETIME NOT NULL,
    inventory_id MEDIUMINT UNSIGNED NOT NULL, customer_id SMALL, return_date DATETIME, STAMP,
    UNIQUE KEY (rental_date, inventory_id, customer_id),
    FOREIGN KEY (inventory_id) REFERENCES inventory (inventory_id));
CREATE TABLE payment (payment_id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, customer_id SMALL, rental_id INT,
    amount DECIMAL(5,2) NOT NULL, payment_date DATETIME NOT NULL, STAMP,
    FOREIGN KEY (rental_id) REFERENCES rental (rental_id) ON DELETE SET NULL ON UPDATE CASCADE)
"""
_SHORT = {
    "SMALL": "SMALLINT UNSIGNED NOT NULL", "TINY": "TINYINT UNSIGNED NOT NULL",
    "CASCADES": "ON DELETE RESTRICT ON UPDATE CASCADE",
    "STAMP": "last_update TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP",
}  # fmt: skip
_ROWS = (
    ("actor (first_name, last_name)", "('first {n}', 'größe {n}')", 200),
    ("category (name)", "('category {n}')", 16),
    ("language (name)", "('language {n}')", 6),
    ("country (country)", "('country {n}')", 100),
    ("city (city, country_id)", "('city {n}', {n} % 100 + 1)", 200),
    ("address (address, city_id, location)", "('street {n}', {n}, ST_GeomFromText('POINT({n} {few})'))", 200),
    ("film (title, description, release_year, language_id, length, rating, special_features)",
     "('film {n}', 'about {n}', 1990 + {few}, {few}, {n}, {few}, {n} % 16)", FILMS),
    ("film_text (film_id, title, description)", "({n}, 'film {n}', 'about {n}')", FILMS),
    ("film_actor (actor_id, film_id)", "({n} % 200 + 1, {n})", FILMS),
    ("film_category (film_id, category_id)", "({n}, {few})", FILMS),
    ("store (manager_id)", "({n})", 2),
    ("staff (first_name, picture, store_id)", "('staff {n}', REPEAT(CHAR({n}), 300), {n})", 2),
    ("customer (store_id, first_name, last_name, create_date)",
     "({n} % 2 + 1, 'first {n}', 'last {n}', '2024-01-01' + INTERVAL {n} HOUR)", 300),
    ("inventory (film_id, store_id)", "({n}, {n} % 2 + 1)", FILMS),
    ("rental (rental_date, inventory_id, customer_id)", "('2024-02-01' + INTERVAL {n} MINUTE, {n}, {n})", 300),
    ("payment (customer_id, rental_id, amount, payment_date)", "({n}, {n}, {n} / 10, '2024-02-01')", 300),
)  # fmt: skip
_REST = """
ALTER TABLE store ADD FOREIGN KEY (manager_id) REFERENCES staff (staff_id) ON DELETE RESTRICT ON UPDATE CASCADE;
CREATE VIEW customer_list AS SELECT customer_id, full_name FROM customer;
CREATE VIEW film_list AS SELECT title, rating FROM film WHERE rating <> 'R';
CREATE TRIGGER film_added AFTER INSERT ON film FOR EACH ROW
    INSERT INTO film_text (film_id, title, description) VALUES (new.film_id, new.title, new.description);
CREATE TRIGGER film_changed AFTER UPDATE ON film FOR EACH ROW
    UPDATE film_text SET title = new.title, description = new.description WHERE film_id = old.film_id;
CREATE TRIGGER film_gone AFTER DELETE ON film FOR EACH ROW DELETE FROM film_text WHERE film_id = old.film_id
"""
_WRITES = """
INSERT INTO film (title, language_id, length, rating, special_features) VALUES ('new {n}', {few}, {n}, {few}, {n} % 16);
UPDATE film SET title = CONCAT(title, '!'), release_year = 2000 + {few} WHERE film_id = {n};
UPDATE actor SET last_name = 'name {few}' WHERE actor_id = {n} % 200 + 1;
UPDATE address SET location = ST_GeomFromText('LINESTRING(0 0, {few} {n})') WHERE address_id = {few};
UPDATE customer SET first_name = 'other {few}' WHERE customer_id = {n};
INSERT INTO rental (rental_date, inventory_id, customer_id) VALUES ('2025-01-01' + INTERVAL {unique} SECOND, {n}, {n});
DELETE FROM film_category WHERE film_id = {n};
UPDATE staff SET picture = REPEAT(CHAR({few}), 500) WHERE staff_id = {n} % 2 + 1;
UPDATE category SET name = 'better {few}' WHERE category_id = {few};
UPDATE country SET country = 'land {n}' WHERE country_id = {n} % 100 + 1;
UPDATE payment SET amount = amount + 1, rental_id = NULL WHERE payment_id = {n}
"""


def create_rental_shop(server: SqlServer, database: str) -> None:
    """Create all of it in an empty database. Rows come before the circle of foreign keys and before the triggers."""
    tables = re.sub(rf"\b({'|'.join(_SHORT)})\b", lambda found: _SHORT[found[0]], _TABLES)
    rows = [f"INSERT INTO {table} VALUES {_values(row, count)}" for table, row, count in _ROWS]
    execute(server, database, *tables.split(";"), *rows, *_REST.split(";"))


def rent(server: SqlServer, database: str, *, seed: int, transactions: int = 40) -> None:
    """Transactions over ten tables, and an eleventh by triggers; some are rolled back."""
    random = Random(seed)
    with server.connect(database) as connection, connection.cursor() as cursor:
        connection.autocommit(False)
        for number in range(transactions):
            chosen = {"n": random.randint(1, FILMS), "few": random.randint(1, 5), "unique": seed * 10_000 + number}
            for statement in _WRITES.split(";"):
                cursor.execute(statement.format(**chosen))
            if number % 10 == 9:
                connection.rollback()
            else:
                connection.commit()


def rekey(server: SqlServer, database: str) -> None:
    """Keys that others refer to change, and a row goes that some refer to: the log says nothing about the others."""
    execute(
        server, database, "UPDATE country SET country_id = 5000 WHERE country_id = 7",
        "UPDATE film SET film_id = 9000 WHERE film_id = 11", "UPDATE language SET language_id = 77 WHERE language_id = 2",
        "UPDATE store SET store_id = 40 WHERE store_id = 1", "UPDATE staff SET staff_id = 50 WHERE staff_id = 2",
        "DELETE FROM rental WHERE rental_id = 12", "UPDATE rental SET rental_id = 90000 WHERE rental_id = 13",
    )  # fmt: skip


def _values(row: str, count: int) -> str:
    return ", ".join(row.format(n=number, few=number % 5 + 1) for number in range(1, count + 1))

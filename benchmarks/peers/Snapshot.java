// Reads a table with the Debezium engine, which writes it nowhere: the time until its last row has arrived.
//
//   java -cp 'jars/*' Snapshot.java PORT DATABASE TABLE ROWS FOLDER
//
// Settings are tuned, not default: larger batches and queues, and a short pause between polls. Prints one JSON document.

import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import java.nio.file.Path;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;

public class Snapshot {
    public static void main(String[] words) throws Exception {
        String port = words[0], database = words[1], table = words[2];
        long rows = Long.parseLong(words[3]);
        Path folder = Path.of(words[4]);
        Properties settings = new Properties();
        settings.setProperty("name", "peer");
        settings.setProperty("connector.class", "io.debezium.connector.mariadb.MariaDbConnector");
        settings.setProperty("offset.storage", "org.apache.kafka.connect.storage.FileOffsetBackingStore");
        settings.setProperty("offset.storage.file.filename", folder.resolve("offsets").toString());
        settings.setProperty("schema.history.internal", "io.debezium.storage.file.history.FileSchemaHistory");
        settings.setProperty("schema.history.internal.file.filename", folder.resolve("history").toString());
        settings.setProperty("topic.prefix", "peer");
        settings.setProperty("database.hostname", "127.0.0.1");
        settings.setProperty("database.port", port);
        settings.setProperty("database.user", "root");
        settings.setProperty("database.password", "");
        settings.setProperty("database.server.id", "54321");
        settings.setProperty("database.include.list", database);
        settings.setProperty("table.include.list", database + "." + table);
        settings.setProperty("snapshot.mode", "initial");
        settings.setProperty("snapshot.fetch.size", "10000");
        settings.setProperty("max.batch.size", "8192");
        settings.setProperty("max.queue.size", "32768");
        settings.setProperty("poll.interval.ms", "20");
        AtomicLong seen = new AtomicLong();
        CountDownLatch ended = new CountDownLatch(1);
        long began = System.nanoTime();
        String topic = "peer." + database + "." + table;
        var engine = DebeziumEngine.create(Connect.class).using(settings).notifying((batch, committer) -> {
            for (var record : batch) {
                if (record.value() != null && topic.equals(record.value().topic()) && seen.incrementAndGet() == rows) {
                    ended.countDown();
                }
                committer.markProcessed(record);
            }
            committer.markBatchFinished();
        }).using((success, message, error) -> {
            if (!success) {
                System.err.println(message);
                System.exit(1);
            }
        }).build();
        Executors.newSingleThreadExecutor().execute(engine);
        ended.await();
        System.out.println("{\"seconds\": " + (System.nanoTime() - began) / 1e9 + "}");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}

import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Carries the rows of relata.outbox to Kafka with Debezium's engine until COUNT of them are acknowledged.
 *
 * <p>Usage: Engine HOST PORT USER DATABASE SLOT BROKERS TOPIC COUNT OFFSETS_FILE, with the password in PGPASSWORD. Prints
 * one line: the seconds from the first row that the engine hands over to the last acknowledgement, the CPU seconds of
 * the whole process, and its largest resident memory in KiB.
 */
public class Engine {
    private static long peakKib() throws Exception {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmHWM:")) {
                return Long.parseLong(line.replaceAll("[^0-9]", ""));
            }
        }
        return -1;
    }

    public static void main(String[] a) throws Exception {
        long count = Long.parseLong(a[7]);
        Properties p = new Properties();
        p.setProperty("name", "bench");
        p.setProperty("connector.class", "io.debezium.connector.postgresql.PostgresConnector");
        p.setProperty("offset.storage", "org.apache.kafka.connect.storage.FileOffsetBackingStore");
        p.setProperty("offset.storage.file.filename", a[8]);
        p.setProperty("offset.flush.interval.ms", "5000");
        p.setProperty("database.hostname", a[0]);
        p.setProperty("database.port", a[1]);
        p.setProperty("database.user", a[2]);
        p.setProperty("database.password", System.getenv("PGPASSWORD"));
        p.setProperty("database.dbname", a[3]);
        p.setProperty("topic.prefix", "bench");
        p.setProperty("plugin.name", "pgoutput");
        p.setProperty("slot.name", a[4]);
        p.setProperty("publication.name", "relata_outbox");
        p.setProperty("publication.autocreate.mode", "disabled");
        p.setProperty("table.include.list", "relata.outbox");
        p.setProperty("snapshot.mode", "no_data");
        p.setProperty("converter.schemas.enable", "false");

        Properties k = new Properties();
        k.setProperty("bootstrap.servers", a[5]);
        k.setProperty("enable.idempotence", "true");
        k.setProperty("acks", "all");
        k.setProperty("linger.ms", "5");
        KafkaProducer<String, String> producer = new KafkaProducer<>(k, new StringSerializer(), new StringSerializer());
        AtomicLong acked = new AtomicLong();
        AtomicLong first = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);

        DebeziumEngine.ChangeConsumer<ChangeEvent<String, String>> consumer =
            new DebeziumEngine.ChangeConsumer<>() {
                @Override
                public void handleBatch(List<ChangeEvent<String, String>> records,
                                        DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer)
                    throws InterruptedException {
                    first.compareAndSet(0, System.nanoTime());
                    CountDownLatch batch = new CountDownLatch(records.size());
                    for (ChangeEvent<String, String> r : records) {
                        producer.send(new ProducerRecord<>(a[6], r.key(), r.value()), (m, e) -> {
                            if (e != null) {
                                e.printStackTrace();
                                System.exit(1);
                            }
                            acked.incrementAndGet();
                            batch.countDown();
                        });
                    }
                    producer.flush();
                    batch.await();
                    for (ChangeEvent<String, String> r : records) {
                        committer.markProcessed(r);
                    }
                    committer.markBatchFinished();
                    if (acked.get() >= count) {
                        done.countDown();
                    }
                }
            };
        DebeziumEngine<ChangeEvent<String, String>> engine =
            DebeziumEngine.create(Json.class).using(p).notifying(consumer)
                .using((ok, message, error) -> {
                    if (!ok) {
                        System.err.println(message);
                        if (error != null) {
                            error.printStackTrace();
                        }
                        System.exit(1);
                    }
                }).build();
        Thread t = new Thread(engine);
        t.setDaemon(true);
        t.start();
        done.await();
        double seconds = (System.nanoTime() - first.get()) / 1e9;
        double cpu = ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime() / 1e9;
        System.out.printf(Locale.ROOT, "%.4f %.4f %d%n", seconds, cpu, peakKib());
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}

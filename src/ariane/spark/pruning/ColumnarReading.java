/* Columnar reading of the format `rocketmq`: Spark reads whole batches instead of rows.
 *
 *   Python: Arrow batch ─→ its message as one value ─→ Spark's reader of Python rows ─→ ArrowMessage ─→ ColumnarBatch
 *
 * Spark converts each value of a Python source to a row, and copies the row once more. Here a row of Python contains a batch, and
 * Spark's generated code reads its columns from the bytes that Python sent.
 */
package ariane.spark;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.SparkFiles;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.SimplePythonFunction;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStreamWithTriggerAvailableNow;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ColumnarBatch;

final class ColumnarReading {
    private static final String COLUMNS = "ariane.columns"; // the same in `records.arrow_messages`
    private static final String FORMAT = "rocketmq"; // whose Python source can return messages
    private static final String PLANNER = "ariane.spark.read.planner_process";

    private ColumnarReading() {}

    /* Return whether the source can return messages, and `ArrowMessage` can read all types of the columns. */
    static boolean supports(String format, StructType schema) {
        return format.equals(FORMAT) && Arrays.stream(schema.fields()).allMatch(field -> supports(field.dataType()));
    }

    private static boolean supports(DataType type) {
        if (type instanceof MapType) {
            MapType map = (MapType) type;
            return supports(map.keyType()) && supports(map.valueType());
        }
        return type.equals(DataTypes.StringType) || type.equals(DataTypes.BinaryType) || type.equals(DataTypes.TimestampType)
                || type.equals(DataTypes.IntegerType) || type.equals(DataTypes.LongType);
    }

    /* Return the schema by which the Python source returns batches of `schema` as values. */
    private static StructType messages(StructType schema) {
        Metadata metadata = new MetadataBuilder().putString(COLUMNS, schema.json()).build();
        return new StructType(new StructField[] {new StructField("batch", DataTypes.BinaryType, true, metadata)});
    }

    static final class ColumnarScan extends PythonScan {
        private final PythonDataSourceV2 source;
        private final StructType schema;
        private final CaseInsensitiveStringMap options;

        ColumnarScan(PythonDataSourceV2 source, StructType schema, CaseInsensitiveStringMap options) {
            super(source, FORMAT, schema, options, new Filter[0]);
            this.source = source;
            this.schema = schema;
            this.options = options;
        }

        @Override
        public ColumnarSupportMode columnarSupportMode() {
            return ColumnarSupportMode.SUPPORTED;
        }

        @Override
        public Batch toBatch() {
            Batch batch = new PythonScan(source, FORMAT, messages(schema), options, new Filter[0]).toBatch();
            return new Batch() {
                @Override
                public InputPartition[] planInputPartitions() {
                    return batch.planInputPartitions();
                }

                @Override
                public PartitionReaderFactory createReaderFactory() {
                    return new ColumnarReaders(batch.createReaderFactory(), schema);
                }
            };
        }

        @Override
        public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
            StructType messages = messages(schema);
            PythonStreamingSourceRunner runner = new StreamPlanner(planner(), messages);
            runner.init();
            return new ColumnarStream(source, messages, options, runner, schema);
        }

        /* Return how to start the planner: its command is the options as JSON, and it finds added files in its path. */
        private PythonFunction planner() {
            MetadataBuilder texts = new MetadataBuilder();
            options.forEach(texts::putString);
            PythonFunction python = source.source().dataSourceCls();
            List<String> path = new ArrayList<>(List.of(SparkFiles.getRootDirectory()));
            python.pythonIncludes().forEach(name -> path.add(SparkFiles.get(name)));
            Map<String, String> variables = new HashMap<>(python.envVars()); // all queries share the original
            variables.merge("PYTHONPATH", String.join(File.pathSeparator, path), (own, added) -> added + File.pathSeparator + own);
            return new SimplePythonFunction(
                    texts.build().json().getBytes(StandardCharsets.UTF_8), variables, python.pythonIncludes(),
                    python.pythonExec(), python.pythonVer(), python.broadcastVars(), python.accumulator());
        }
    }

    /* Plans a stream in a process that imports neither pyspark nor pyarrow. Spark starts one for each query. */
    private static final class StreamPlanner extends PythonStreamingSourceRunner {
        StreamPlanner(PythonFunction planner, StructType schema) {
            super(planner, schema);
        }

        @Override
        public String workerModule() {
            return PLANNER;
        }
    }

    /* The Python source accepts limits and supports the trigger AvailableNow. */
    private static final class ColumnarStream extends PythonMicroBatchStreamWithTriggerAvailableNow {
        private final StructType schema;

        ColumnarStream(
                PythonDataSourceV2 source, StructType messages, CaseInsensitiveStringMap options,
                PythonStreamingSourceRunner runner, StructType schema) {
            super(source, FORMAT, messages, options, runner);
            this.schema = schema;
        }

        @Override
        public PartitionReaderFactory createReaderFactory() {
            return new ColumnarReaders(super.createReaderFactory(), schema);
        }
    }

    /* Executed by executors, which therefore need the jar. */
    private static final class ColumnarReaders implements PartitionReaderFactory {
        private final PartitionReaderFactory readers;
        private final StructType schema;

        ColumnarReaders(PartitionReaderFactory readers, StructType schema) {
            this.readers = readers;
            this.schema = schema;
        }

        @Override
        public boolean supportColumnarReads(InputPartition partition) {
            return true;
        }

        @Override
        public PartitionReader<InternalRow> createReader(InputPartition partition) {
            throw new UnsupportedOperationException("reads columns only");
        }

        @Override
        public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
            PartitionReader<InternalRow> rows = readers.createReader(partition);
            return new PartitionReader<>() {
                @Override
                public boolean next() throws IOException {
                    return rows.next();
                }

                @Override
                public ColumnarBatch get() {
                    return ArrowMessage.batch(rows.get(), schema);
                }

                @Override
                public CustomTaskMetric[] currentMetricsValues() {
                    return rows.currentMetricsValues();
                }

                @Override
                public void close() throws IOException {
                    rows.close();
                }
            };
        }
    }
}

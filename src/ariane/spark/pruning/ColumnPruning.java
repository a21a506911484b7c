/* Column pruning for the formats `rocketmq` and `rocketmq-store`: a query reads only the columns that it needs.
 *
 *   count(), select ─→ PrunedScanBuilder ─→ Spark's PythonScanBuilder, with a schema of these columns ─→ Python, as by .schema(…)
 *
 * Spark's wrapper of Python sources, which this extends, passes filters to them but no columns. Spark prefers a format in a jar to
 * a Python source of the same name. Where it can, Spark then reads columns instead of rows (`ColumnarReading`).
 */
package ariane.spark;

import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

public abstract class ColumnPruning extends PythonDataSourceV2 implements DataSourceRegister {
    // The classes of Spark that are extended here are internal: each minor version has to be tested.
    private static final List<String> SPARK_VERSIONS = List.of("4.2", "4.3");

    private final String format;

    private ColumnPruning(String format) {
        this.format = format;
    }

    public static final class Messages extends ColumnPruning {
        public Messages() {
            super("rocketmq");
        }
    }

    public static final class StoreFiles extends ColumnPruning {
        public StoreFiles() {
            super("rocketmq-store");
        }
    }

    @Override
    public String shortName() {
        return format;
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        // Not in the constructor: Spark creates each format of a jar to look up any format.
        String version = org.apache.spark.package$.MODULE$.SPARK_VERSION();
        if (SPARK_VERSIONS.stream().noneMatch(supported -> version.startsWith(supported + "."))) {
            String supported = String.join(" and ", SPARK_VERSIONS);
            throw new UnsupportedOperationException("Spark " + version + ": Ariane's jar for column pruning supports " + supported
                    + "; remove it from spark.jars, the format " + format + " works without it");
        }
        return new PrunedTable(this, format, schema);
    }

    private static final class PrunedTable extends PythonTable {
        private final String format;

        PrunedTable(PythonDataSourceV2 source, String format, StructType schema) {
            super(source, format, schema);
            this.format = format;
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new PrunedScanBuilder(format, schema(), options);
        }
    }

    private static final class PrunedScanBuilder implements SupportsPushDownFilters, SupportsPushDownRequiredColumns {
        // Each of them is explained by the other one, so the Python source needs both or neither.
        private static final Map<String, String> COMPANIONS =
                Map.of("value", "value_error", "value_error", "value", "body", "body_error");
        private static final String SMALLEST = "queue_offset";

        private final String format;
        private final StructType declared;
        private final CaseInsensitiveStringMap options;
        private Filter[] filters = {};
        private StructType schema;
        private PythonScanBuilder builder;

        PrunedScanBuilder(String format, StructType declared, CaseInsensitiveStringMap options) {
            this.format = format;
            this.declared = declared;
            this.schema = declared;
            this.options = options;
            this.builder = newBuilder(declared);
        }

        @Override
        public Filter[] pushFilters(Filter[] filters) {
            this.filters = filters;
            return builder.pushFilters(filters);
        }

        @Override
        public Filter[] pushedFilters() {
            return builder.pushedFilters();
        }

        /* Called after pushFilters, whose reader has the columns of the declared schema: another one gets the same filters. */
        @Override
        public void pruneColumns(StructType required) {
            schema = columnsFor(required);
            if (!schema.equals(declared)) {
                builder = newBuilder(schema);
                builder.pushFilters(filters);
            }
        }

        @Override
        public Scan build() {
            boolean isColumnar = ColumnarReading.supports(format, schema) && (filters.length == 0 || !pushesFilters());
            return isColumnar ? new ColumnarReading.ColumnarScan(newSource(), schema, options) : builder.build();
        }

        /* Return whether Python may read less because of filters. Its plan for them is made for rows. */
        private boolean pushesFilters() {
            return !"false".equalsIgnoreCase(options.getOrDefault("pushDownPredicate", "false"));
        }

        private PythonScanBuilder newBuilder(StructType schema) {
            return new PythonScanBuilder(newSource(), format, schema, options);
        }

        /* Return a source of its own for each scan, because a source keeps the reader of its first schema. */
        private PythonDataSourceV2 newSource() {
            PythonDataSourceV2 source = new PythonDataSourceV2();
            source.setShortName(format);
            return source;
        }

        /* Return the columns that the Python source has to read, at least one, in the order of the declared schema. */
        private StructType columnsFor(StructType required) {
            Map<String, StructField> fields = new HashMap<>();
            for (StructField field : declared.fields()) {
                fields.put(field.name(), field);
            }
            Set<String> names = new HashSet<>();
            for (StructField field : required.fields()) {
                fields.put(field.name(), field); // possibly with a part of the declared type: fields of `value`
                names.add(field.name());
                names.add(COMPANIONS.get(field.name()));
            }
            for (Filter filter : filters) { // Spark serializes the filters of a scan by its schema
                for (String[] reference : filter.v2references()) {
                    names.add(reference[0]);
                }
            }
            if (names.isEmpty()) {
                names.add(fields.containsKey(SMALLEST) ? SMALLEST : declared.fieldNames()[0]);
            }
            return new StructType(
                    Arrays.stream(declared.fieldNames()).filter(names::contains).map(fields::get).toArray(StructField[]::new));
        }
    }
}

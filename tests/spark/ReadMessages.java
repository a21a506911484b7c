/* Prints the rows of messages as ArrowMessage reads them: ReadMessages SCHEMA MESSAGE…, all of them files.
 *
 *   rows 2, then a line per row: values separated by "|", a binary as its length and hash code, a map as [key=value, …]
 *   refused: why the message cannot be read
 */
package ariane.spark;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

public final class ReadMessages {
    public static void main(String[] arguments) throws Exception {
        StructType schema = (StructType) DataType.fromJson(Files.readString(Path.of(arguments[0])));
        UnsafeRowWriter writer = new UnsafeRowWriter(1);
        for (String file : Arrays.asList(arguments).subList(1, arguments.length)) {
            writer.reset(); // the next message replaces the bytes of this one, as with Spark's reader
            writer.zeroOutNullBytes();
            writer.write(0, Files.readAllBytes(Path.of(file)));
            try {
                print(ArrowMessage.batch(writer.getRow(), schema), schema);
            } catch (IllegalStateException refusal) {
                System.out.println("refused: " + refusal.getMessage());
            }
        }
    }

    private static void print(ColumnarBatch batch, StructType schema) {
        System.out.println("rows " + batch.numRows());
        for (Iterator<InternalRow> rows = batch.rowIterator(); rows.hasNext();) {
            InternalRow row = rows.next();
            List<String> values = new ArrayList<>();
            for (int index = 0; index < schema.size(); index++) {
                values.add(row.isNullAt(index) ? "null" : value(row, index, schema.fields()[index].dataType()));
            }
            System.out.println(String.join("|", values));
        }
    }

    private static String value(InternalRow row, int index, DataType type) {
        if (type instanceof MapType) {
            MapData map = row.getMap(index);
            List<String> pairs = new ArrayList<>();
            for (int pair = 0; pair < map.numElements(); pair++) {
                pairs.add(map.keyArray().getUTF8String(pair) + "=" + map.valueArray().getUTF8String(pair));
            }
            return pairs.toString();
        }
        if (type.equals(DataTypes.BinaryType)) {
            byte[] bytes = row.getBinary(index);
            return bytes.length + ":" + Arrays.hashCode(bytes);
        }
        if (type.equals(DataTypes.StringType)) {
            return row.getUTF8String(index).toString();
        }
        return String.valueOf(type.equals(DataTypes.IntegerType) ? row.getInt(index) : row.getLong(index));
    }
}

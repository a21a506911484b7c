/* Columns of an Arrow record batch in the bytes of its IPC message, read in place.
 *
 *   -1 | size of the metadata | metadata: number of rows, nodes, buffers | buffers
 *
 * A column has a node (its number of nulls) and buffers: which values are present, offsets, data. A column without nulls has an
 * empty first buffer. The values are valid until the next row of Python is read.
 *
 * The JVM does not check reads by address. So this class compares the buffers with the number of rows and with the size of the
 * message, and offsets with the size of the data.
 */
package ariane.spark;

import java.nio.ByteBuffer;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

final class ArrowMessage {
    private static final int PREFIX = 8; // -1, and the size of the metadata

    private final byte[] bytes;
    private final RecordBatch batch;
    private final long body; // address of the buffers, relative to `bytes`
    private final long end; // of the message
    private int node; // of the next column
    private int buffer;

    private ArrowMessage(byte[] bytes, long address, int size) {
        this.bytes = bytes;
        this.end = address + size;
        int metadata = Platform.getInt(bytes, address + PREFIX - Integer.BYTES);
        int start = (int) (address - Platform.BYTE_ARRAY_OFFSET) + PREFIX;
        Message message = Message.getRootAsMessage(ByteBuffer.wrap(bytes, start, metadata).slice());
        this.batch = (RecordBatch) message.header(new RecordBatch());
        this.body = address + PREFIX + metadata;
    }

    /* Return the batch that the first value of a row contains, with the columns of `schema`. */
    static ColumnarBatch batch(InternalRow row, StructType schema) {
        // Spark's reader of Python rows returns unsafe rows: the value is read where it is, without a copy.
        UnsafeRow unsafe = (UnsafeRow) row;
        long offsetAndSize = unsafe.getLong(0);
        long address = unsafe.getBaseOffset() + (offsetAndSize >> Integer.SIZE);
        ArrowMessage message = new ArrowMessage((byte[]) unsafe.getBaseObject(), address, (int) offsetAndSize);
        StructField[] fields = schema.fields();
        ColumnVector[] columns = new ColumnVector[fields.length];
        for (int index = 0; index < fields.length; index++) {
            columns[index] = new Column(message, fields[index].dataType(), message.batch.length());
        }
        return new ColumnarBatch(columns, (int) message.batch.length());
    }

    /* Return the address of the next buffer, which has to have at least `needed` bytes. */
    private long nextBuffer(long needed) {
        long length = batch.buffers(buffer).length();
        long address = body + batch.buffers(buffer++).offset();
        if (length < needed || address < body || address + length > end) {
            throw new IllegalStateException("buffer " + (buffer - 1) + " of a batch has " + length + " bytes at " + (address - body)
                    + ", expected " + needed + " within " + (end - body));
        }
        return address;
    }

    private static final class Column extends ColumnVector {
        private final byte[] bytes;
        private final int nulls;
        private final long valid;
        private final long offsets;
        private final long data;
        private final long size; // of the data in bytes, or the number of pairs of all maps
        private final ColumnVector keys; // of all maps
        private final ColumnVector values;

        Column(ArrowMessage message, DataType type, long rows) {
            super(type);
            boolean isMap = type instanceof MapType;
            boolean isFixed = !isMap && !type.equals(DataTypes.StringType) && !type.equals(DataTypes.BinaryType);
            bytes = message.bytes;
            nulls = (int) message.batch.nodes(message.node++).nullCount();
            valid = message.nextBuffer(nulls > 0 ? (rows + Byte.SIZE - 1) / Byte.SIZE : 0);
            offsets = isFixed ? 0 : message.nextBuffer(rows > 0 ? Integer.BYTES * (rows + 1) : 0);
            if (isMap) {
                MapType map = (MapType) type;
                size = message.batch.nodes(message.node++).length();
                message.buffer++; // which pairs are present: all of them
                keys = new Column(message, map.keyType(), size);
                values = new Column(message, map.valueType(), size);
                data = 0;
            } else {
                size = message.batch.buffers(message.buffer).length();
                data = message.nextBuffer(isFixed ? type.defaultSize() * rows : 0);
                keys = null;
                values = null;
            }
        }

        @Override
        public boolean hasNull() {
            return nulls > 0;
        }

        @Override
        public int numNulls() {
            return nulls;
        }

        @Override
        public boolean isNullAt(int row) {
            return nulls > 0 && (Platform.getByte(bytes, valid + (row >> 3)) >> (row & 7) & 1) == 0;
        }

        @Override
        public int getInt(int row) {
            return Platform.getInt(bytes, data + (long) Integer.BYTES * row);
        }

        @Override
        public long getLong(int row) {
            return Platform.getLong(bytes, data + (long) Long.BYTES * row);
        }

        @Override
        public UTF8String getUTF8String(int row) {
            if (isNullAt(row)) {
                return null;
            }
            int start = offset(row);
            return UTF8String.fromAddress(bytes, data + start, length(row, start));
        }

        @Override
        public byte[] getBinary(int row) {
            if (isNullAt(row)) {
                return null;
            }
            int start = offset(row);
            byte[] value = new byte[length(row, start)];
            Platform.copyMemory(bytes, data + start, value, Platform.BYTE_ARRAY_OFFSET, value.length);
            return value;
        }

        @Override
        public ColumnarMap getMap(int row) {
            if (isNullAt(row)) {
                return null;
            }
            int start = offset(row);
            return new ColumnarMap(keys, values, start, length(row, start));
        }

        private int length(int row, int start) {
            int stop = offset(row + 1);
            if (start < 0 || stop < start || stop > size) {
                throw new IllegalStateException("row " + row + " of a batch has offsets " + start + " to " + stop + " of " + size);
            }
            return stop - start;
        }

        private int offset(int row) {
            return Platform.getInt(bytes, offsets + (long) Integer.BYTES * row);
        }

        @Override
        public void close() {
            // the bytes belong to Spark's reader
        }

        @Override
        public boolean getBoolean(int row) {
            throw unsupported();
        }

        @Override
        public byte getByte(int row) {
            throw unsupported();
        }

        @Override
        public short getShort(int row) {
            throw unsupported();
        }

        @Override
        public float getFloat(int row) {
            throw unsupported();
        }

        @Override
        public double getDouble(int row) {
            throw unsupported();
        }

        @Override
        public Decimal getDecimal(int row, int precision, int scale) {
            throw unsupported();
        }

        @Override
        public ColumnarArray getArray(int row) {
            throw unsupported();
        }

        @Override
        public ColumnVector getChild(int ordinal) {
            throw unsupported();
        }

        private UnsupportedOperationException unsupported() {
            return new UnsupportedOperationException("not a column of the type " + type.simpleString());
        }
    }
}

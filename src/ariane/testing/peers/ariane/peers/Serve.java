package ariane.peers;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.FileDescriptor;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs programs one after another in one JVM, until the end of its input: a JVM for each would cost many times as much. A line of input
 * is {"main":CLASS,"args":[...]}. Behind the output of a program comes a line of a zero byte and its exit status.
 */
public final class Serve {
    /** The output of the program that a thread belongs to: threads of a client may print behind the end of its program. */
    private static final ThreadLocal<Output> OUTPUT = new InheritableThreadLocal<>();
    private static final OutputStream REAL = new FileOutputStream(FileDescriptor.out);

    private static volatile boolean isServing;

    /** End a program. All programs end here, in their main thread: a client's threads would keep a JVM alive for 3 s. */
    static void exit(int status) {
        if (!isServing) {
            System.exit(status);
        }
        throw new Exit(status);
    }

    static boolean isServing() {
        return isServing;
    }

    public static void main(String[] args) throws Exception {
        isServing = true;
        PrintStream printed = new PrintStream(new OfThread(), true, StandardCharsets.UTF_8);
        System.setOut(printed);
        System.setErr(printed);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JSONObject asked = JSON.parseObject(line);
            String[] arguments = asked.getJSONArray("args").toArray(new String[0]);
            Output output = new Output();
            Thread thread = new Thread(() -> {
                OUTPUT.set(output);
                output.end(run(asked.getString("main"), arguments));
            });
            thread.setDaemon(true); // at the end of the input the JVM exits
            thread.start();
        }
        System.exit(0);
    }

    private static int run(String name, String[] arguments) {
        System.clearProperty("rocketmq.namesrv.addr"); // an option of mqadmin sets it
        try {
            if (name.equals(MQAdminStartup.class.getName())) {
                Admin.refresh();
            }
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException error) {
            if (error.getCause() instanceof Exit) {
                return ((Exit) error.getCause()).status;
            }
            error.getCause().printStackTrace();
            return 2; // as at the end that Json.endAtFirstError sets
        } catch (ReflectiveOperationException error) {
            error.printStackTrace();
            return 1;
        }
    }

    private static final class Exit extends Error {
        final int status;

        Exit(int status) {
            super(null, null, false, false);
            this.status = status;
        }
    }

    /** The output of one program. What is printed behind its end is dropped. */
    private static final class Output {
        private boolean isOpen = true;
        private int last = '\n';

        synchronized void write(byte[] bytes, int from, int count) throws IOException {
            if (isOpen && count > 0) {
                REAL.write(bytes, from, count);
                last = bytes[from + count - 1];
            }
        }

        synchronized void end(int status) {
            try {
                byte[] line = ((last == '\n' ? "" : "\n") + "\0" + status + "\n").getBytes(StandardCharsets.UTF_8);
                write(line, 0, line.length);
                isOpen = false;
            } catch (IOException error) {
                Runtime.getRuntime().halt(1);
            }
        }
    }

    private static final class OfThread extends OutputStream {
        @Override
        public void write(int value) throws IOException {
            write(new byte[] {(byte) value}, 0, 1);
        }

        @Override
        public void write(byte[] bytes, int from, int count) throws IOException {
            Output output = OUTPUT.get();
            if (output != null) {
                output.write(bytes, from, count);
            }
        }
    }
}

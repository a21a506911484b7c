package ariane.peers;

import java.lang.reflect.Field;
import java.util.Arrays;
import java.util.Collection;
import java.util.stream.Stream;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.message.DecodeMessageIdCommond;
import org.apache.rocketmq.tools.command.offset.GetConsumerStatusCommand;
import org.apache.rocketmq.tools.command.offset.ResetOffsetByTimeOldCommand;

/**
 * Runs one mqadmin command line after another in one JVM: namesrv line [line ...]. Words of a line are parted by a space.
 * Behind the output of each comes a line `#### n`. Three commands that 4.9.4 has but does not register are registered too.
 */
public final class Admin {
    public static void main(String[] args) throws ReflectiveOperationException {
        for (int number = 1; number < args.length; number++) {
            refresh();
            Registry.addUnregistered();
            String[] words = args[number].split(" ");
            MQAdminStartup.main0(Stream.concat(Arrays.stream(words), Stream.of("-n", args[0])).toArray(String[]::new), null);
            System.err.flush();
            System.out.println("\n#### " + number); // some commands end without an end of line
            System.out.flush();
        }
        Serve.exit(0);
    }

    /** A command object of 4.9.4 is good for one call: some keep the client that they shut down. main0 registers new ones. */
    static void refresh() throws ReflectiveOperationException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) { // the list has another name in 5.x
            if (Collection.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((Collection<?>) field.get(null)).clear();
            }
        }
    }

    private static final class Registry extends MQAdminStartup {
        static void addUnregistered() {
            initCommand(new DecodeMessageIdCommond());
            initCommand(new GetConsumerStatusCommand());
            initCommand(new ResetOffsetByTimeOldCommand());
        }
    }
}

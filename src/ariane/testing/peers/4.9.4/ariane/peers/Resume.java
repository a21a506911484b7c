package ariane.peers;

import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Has a broker ask again about a half message that it put aside: namesrv offsetMsgId. */
public final class Resume {
    public static void main(String[] args) throws Exception {
        Json.endAtFirstError();
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(args[0]);
        admin.start();
        boolean resumed = admin.resumeCheckHalfMessage(args[1]);
        System.out.println(new Json().put("resumed", resumed));
        admin.shutdown();
        Serve.exit(resumed ? 0 : 1);
    }
}

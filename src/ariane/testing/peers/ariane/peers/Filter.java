package ariane.peers;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;

/** What 4.9.4 says to each line of a file, {"expression":…,"properties":{…}}: refused, true, false, unknown or an error. */
public final class Filter {
    public static void main(String[] args) throws Exception {
        for (String line : Files.readAllLines(Paths.get(args[0]))) {
            JSONObject asked = JSON.parseObject(line);
            Map<String, String> properties = new HashMap<>();
            asked.getJSONObject("properties").forEach((name, value) -> properties.put(name, (String) value));
            System.out.println(new Json().put("answer", answer(asked.getString("expression"), properties)));
        }
    }

    static String answer(String text, Map<String, String> properties) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text);
        } catch (Exception refused) {
            return "refused";
        }
        try {
            Object value = expression.evaluate(new MessageEvaluationContext(properties));
            return value == null ? "unknown" : value.toString();
        } catch (Throwable error) {
            return "error";
        }
    }
}

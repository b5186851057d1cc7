import java.util.ArrayList;
import java.util.List;
import java.util.Map;

import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.plugins.Plugin;

/**
 * A search server of one node, without the start-up checks and the security manager of the packaged ones.
 *
 * The first argument names its plug-ins, with commas between them, the others are settings, NAME=VALUE. It ends when its standard input does,
 * so that it never outlives who started it. Elasticsearch has the same classes under its own name, which is written into
 * a copy of this file.
 */
public class Server extends Node {
    private Server(Environment environment, List<Class<? extends Plugin>> plugins) {
        super(environment, plugins, false);
    }

    public static void main(String[] arguments) throws Exception {
        Settings.Builder settings = Settings.builder();
        for (String argument : List.of(arguments).subList(1, arguments.length)) {
            String[] setting = argument.split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        Environment environment =
            InternalSettingsPreparer.prepareEnvironment(settings.build(), Map.of(), null, () -> "colmet");
        List<Class<? extends Plugin>> plugins = new ArrayList<>();
        for (String name : arguments[0].split(",")) {
            plugins.add(Class.forName(name).asSubclass(Plugin.class));
        }
        new Thread(() -> {
            try {
                System.in.read();
            } catch (java.io.IOException err) {
                err.printStackTrace();
            }
            Runtime.getRuntime().halt(0);
        }).start();
        new Server(environment, plugins).start();
    }
}

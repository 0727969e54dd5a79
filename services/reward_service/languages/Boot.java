import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.io.StringWriter;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.zip.ZipEntry;
import java.util.zip.ZipInputStream;
import java.util.zip.ZipOutputStream;
import javax.tools.FileObject;
import javax.tools.ForwardingJavaFileManager;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileManager;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;

/**
 * Compiles a source from standard input into an archive of classes, or runs such an archive.
 *
 * <p>`Boot compile FILE` writes the archive. `Boot run DESCRIPTOR` runs the archive behind an open
 * descriptor, which has no path in a sandbox. A sandbox has no sockets either, which `java.nio.file`
 * wants before it opens a file, so files are opened by `java.io`.
 */
public final class Boot {
    private static final long STACK_BYTES = 64L << 20;

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("compile")) System.exit(compile(arguments[1]) ? 0 : 1);
        run(read(Integer.parseInt(arguments[1])));
    }

    private static boolean compile(String output) throws Exception {
        String text = new String(System.in.readAllBytes(), StandardCharsets.UTF_8);
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        Outputs outputs = new Outputs(compiler.getStandardFileManager(null, null, null));
        List<String> flags = List.of("-proc:none", "-nowarn", "-Xmaxerrs", "3", "-g:none");
        StringWriter said = new StringWriter();
        boolean ok = compiler.getTask(said, outputs, null, flags, null, List.of(new Source(text))).call();
        System.err.print(said);
        if (!ok) return false;
        try (FileOutputStream file = new FileOutputStream(output)) {
            file.write(outputs.archive());
        }
        return true;
    }

    /** A source that may define a public class of any name. */
    private static final class Source extends SimpleJavaFileObject {
        private final String text;

        Source(String text) {
            super(URI.create("memory:///Main.java"), Kind.SOURCE);
            this.text = text;
        }

        @Override
        public CharSequence getCharContent(boolean ignoreEncodingErrors) {
            return text;
        }

        @Override
        public boolean isNameCompatible(String name, Kind kind) {
            return true;
        }
    }

    /** Keeps classes in memory. */
    private static final class Outputs extends ForwardingJavaFileManager<JavaFileManager> {
        private final Map<String, ByteArrayOutputStream> classes = new TreeMap<>();

        Outputs(JavaFileManager files) {
            super(files);
        }

        @Override
        public JavaFileObject getJavaFileForOutput(
                Location location, String name, JavaFileObject.Kind kind, FileObject sibling) {
            ByteArrayOutputStream content = new ByteArrayOutputStream();
            classes.put(name, content);
            return new SimpleJavaFileObject(URI.create("memory:///" + name.replace('.', '/')), kind) {
                @Override
                public OutputStream openOutputStream() {
                    return content;
                }
            };
        }

        byte[] archive() throws Exception {
            ByteArrayOutputStream all = new ByteArrayOutputStream();
            try (ZipOutputStream zip = new ZipOutputStream(all)) {
                zip.setLevel(0);
                for (Map.Entry<String, ByteArrayOutputStream> one : classes.entrySet()) {
                    ZipEntry entry = new ZipEntry(one.getKey().replace('.', '/') + ".class");
                    entry.setTime(0);
                    zip.putNextEntry(entry);
                    zip.write(one.getValue().toByteArray());
                }
            }
            return all.toByteArray();
        }
    }

    private static byte[] read(int descriptor) throws Exception {
        Constructor<FileDescriptor> make = FileDescriptor.class.getDeclaredConstructor(int.class);
        make.setAccessible(true);
        return new FileInputStream(make.newInstance(descriptor)).readAllBytes();
    }

    private static void run(byte[] archive) throws Exception {
        Map<String, byte[]> classes = new TreeMap<>();
        try (ZipInputStream zip = new ZipInputStream(new ByteArrayInputStream(archive))) {
            for (ZipEntry entry; (entry = zip.getNextEntry()) != null; ) {
                String name = entry.getName().replace('/', '.');
                classes.put(name.substring(0, name.length() - 6), zip.readAllBytes());
            }
        }
        Method main = main(new Classes(classes), classes.keySet());
        boolean[] failed = {false};
        Runnable call = () -> {
            try {
                main.invoke(null, (Object) new String[0]);
            } catch (InvocationTargetException error) {
                failed[0] = true;
                report(error.getCause());
            } catch (Throwable error) {
                failed[0] = true;
                report(error);
            }
        };
        Thread thread = new Thread(null, call, "main", STACK_BYTES);
        thread.start();
        thread.join();
        if (failed[0]) System.exit(1);
    }

    /** What is the matter comes last, as it does where other languages fail. */
    private static void report(Throwable error) {
        System.out.flush();
        StackTraceElement[] trace = error.getStackTrace();
        for (int i = Math.min(trace.length, 20) - 1; i >= 0; i--) System.err.println("\tat " + trace[i]);
        System.err.println(error);
    }

    private static Method main(ClassLoader loader, Iterable<String> names) throws Exception {
        List<String> inOrder = new ArrayList<>(List.of("Main"));
        names.forEach(inOrder::add);
        for (String name : inOrder) {
            try {
                Method found = loader.loadClass(name).getDeclaredMethod("main", String[].class);
                if (!Modifier.isStatic(found.getModifiers())) continue;
                found.setAccessible(true);
                return found;
            } catch (ClassNotFoundException | NoSuchMethodException none) {
                continue;
            }
        }
        System.err.println("no class has a method `public static void main(String[])`");
        System.exit(1);
        return null;
    }

    private static final class Classes extends ClassLoader {
        private final Map<String, byte[]> classes;

        Classes(Map<String, byte[]> classes) {
            super(ClassLoader.getPlatformClassLoader());
            this.classes = classes;
        }

        @Override
        protected Class<?> findClass(String name) throws ClassNotFoundException {
            byte[] code = classes.get(name);
            if (code == null) throw new ClassNotFoundException(name);
            return defineClass(name, code, 0, code.length);
        }
    }
}

// Calls a function with arguments read as text and reports its results, in the form of
// services/reward_service/jailed/codec.py. The types are those the function declares.
namespace millrace {
struct Mismatch : std::runtime_error { using std::runtime_error::runtime_error; };

struct Reader {
    const std::string& text;
    std::size_t at = 0;
    char peek() const { return at < text.size() ? text[at] : '\0'; }
    void take(char sign) {
        if (peek() != sign) throw Mismatch("an argument has another type than the parameter");
        ++at;
    }
    std::string word() {
        std::size_t start = at;
        while (at < text.size() && !std::strchr(",:])>}", text[at])) ++at;
        return text.substr(start, at - start);
    }
};

template <class T, class = void> struct Value;

template <class T> struct Value<T, std::enable_if_t<std::is_arithmetic_v<T>>> {
    static T read(Reader& in) {
        if constexpr (std::is_same_v<T, char>) {
            if (in.peek() == '"') {
                std::size_t end = in.text.find('"', in.at + 1);
                char c = in.text.at(in.at + 1);
                in.at = end + 1;
                return c;
            }
        }
        std::string word = in.word();
        if (word == "True" || word == "False") return static_cast<T>(word == "True");
        if (word.size() < 2 || (word[0] != 'i' && word[0] != 'f'))
            throw Mismatch("an argument has another type than the parameter");
        if (word[0] == 'f') return static_cast<T>(std::strtod(word.c_str() + 1, nullptr));
        bool negative = word[1] == '-';
        unsigned long long size = std::strtoull(word.c_str() + 1 + negative, nullptr, 16);
        if constexpr (std::is_floating_point_v<T>)
            return negative ? -static_cast<T>(size) : static_cast<T>(size);
        else
            return static_cast<T>(negative ? 0 - size : size);
    }
    static void write(std::string& out, const T& value) {
        char text[64];
        if constexpr (std::is_same_v<T, bool>) {
            out += value ? "True" : "False";
        } else if constexpr (std::is_same_v<T, char>) {
            out += '"';
            std::snprintf(text, sizeof text, "\\u%04x", static_cast<unsigned char>(value));
            out += text;
            out += '"';
        } else if constexpr (std::is_floating_point_v<T>) {
            std::snprintf(text, sizeof text, "f%a", static_cast<double>(value));
            out += text;
        } else if (value < 0) {
            std::snprintf(text, sizeof text, "i-%llx", 0 - static_cast<unsigned long long>(value));
            out += text;
        } else {
            std::snprintf(text, sizeof text, "i%llx", static_cast<unsigned long long>(value));
            out += text;
        }
    }
};

template <> struct Value<std::string> {
    static unsigned unit(Reader& in) {
        unsigned code = static_cast<unsigned>(std::stoul(in.text.substr(in.at, 4), nullptr, 16));
        in.at += 4;
        return code;
    }
    static void put(std::string& out, unsigned code) {
        if (code < 0x80) { out += static_cast<char>(code); return; }
        if (code < 0x800) { out += static_cast<char>(0xC0 | code >> 6); }
        else if (code < 0x10000) {
            out += static_cast<char>(0xE0 | code >> 12);
            out += static_cast<char>(0x80 | (code >> 6 & 63));
        } else {
            out += static_cast<char>(0xF0 | code >> 18);
            out += static_cast<char>(0x80 | (code >> 12 & 63));
            out += static_cast<char>(0x80 | (code >> 6 & 63));
        }
        out += static_cast<char>(0x80 | (code & 63));
    }
    static std::string read(Reader& in) {
        std::string value;
        in.take('"');
        while (in.at < in.text.size() && in.text[in.at] != '"') {
            char c = in.text[in.at++];
            if (c != '\\') { value += c; continue; }
            c = in.text[in.at++];
            if (c == 'u') {
                unsigned code = unit(in);
                if (code >= 0xD800 && code < 0xDC00 && in.text.compare(in.at, 2, "\\u") == 0) {
                    in.at += 2;
                    code = 0x10000 + ((code - 0xD800) << 10) + (unit(in) - 0xDC00);
                }
                put(value, code);
            } else {
                const char* from = "bfnrt";
                const char* found = std::strchr(from, c);
                value += found && c ? "\b\f\n\r\t"[found - from] : c;
            }
        }
        in.take('"');
        return value;
    }
    static void write(std::string& out, const std::string& value) {
        char text[16];
        out += '"';
        for (std::size_t i = 0; i < value.size();) {
            unsigned char c = static_cast<unsigned char>(value[i]);
            int more = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : c >= 0xC0 ? 1 : 0;
            unsigned code = more == 3 ? c & 7 : more == 2 ? c & 15 : more ? c & 31 : c;
            for (++i; more && i < value.size(); --more, ++i)
                code = code << 6 | (static_cast<unsigned char>(value[i]) & 63);
            if (code >= 0x10000) {
                std::snprintf(text, sizeof text, "\\u%04x", 0xD800 + ((code - 0x10000) >> 10));
                out += text;
                code = 0xDC00 + (code & 0x3FF);
            }
            if (std::isalnum(static_cast<int>(code & 0x7F)) && code < 0x80) { out += static_cast<char>(code); continue; }
            std::snprintf(text, sizeof text, "\\u%04x", code);
            out += text;
        }
        out += '"';
    }
};

template <class C, class Add> void read_items(Reader& in, C&, Add add) {
    char open = in.peek();
    char close = open == '[' ? ']' : open == '(' ? ')' : open == '<' ? '>' : open == '{' ? '}' : '\0';
    if (!close) throw Mismatch("an argument has another type than the parameter");
    ++in.at;
    for (bool first = true; in.peek() != close; first = false) {
        if (!first) in.take(',');
        add();
    }
    ++in.at;
}

template <class C> struct Sequence {
    static C read(Reader& in) {
        C value;
        read_items(in, value, [&] { value.insert(value.end(), Value<typename C::value_type>::read(in)); });
        return value;
    }
    static void write(std::string& out, const C& value) {
        out += '[';
        bool first = true;
        for (const auto& item : value) {
            if (!first) out += ',';
            first = false;
            Value<typename C::value_type>::write(out, item);
        }
        out += ']';
    }
};
template <class T> struct Value<std::vector<T>> : Sequence<std::vector<T>> {};
template <class T> struct Value<std::deque<T>> : Sequence<std::deque<T>> {};
template <class T> struct Value<std::list<T>> : Sequence<std::list<T>> {};

template <class C> struct Unordered : Sequence<C> {
    static void write(std::string& out, const C& value) {
        out += '<';
        bool first = true;
        for (const auto& item : value) {
            if (!first) out += ',';
            first = false;
            Value<typename C::value_type>::write(out, item);
        }
        out += '>';
    }
};
template <class T> struct Value<std::set<T>> : Unordered<std::set<T>> {};
template <class T> struct Value<std::unordered_set<T>> : Unordered<std::unordered_set<T>> {};

template <class C> struct Table {
    static C read(Reader& in) {
        C value;
        read_items(in, value, [&] {
            auto key = Value<typename C::key_type>::read(in);
            in.take(':');
            value[key] = Value<typename C::mapped_type>::read(in);
        });
        return value;
    }
    static void write(std::string& out, const C& value) {
        out += '{';
        bool first = true;
        for (const auto& pair : value) {
            if (!first) out += ',';
            first = false;
            Value<typename C::key_type>::write(out, pair.first);
            out += ':';
            Value<typename C::mapped_type>::write(out, pair.second);
        }
        out += '}';
    }
};
template <class K, class V> struct Value<std::map<K, V>> : Table<std::map<K, V>> {};
template <class K, class V> struct Value<std::unordered_map<K, V>> : Table<std::unordered_map<K, V>> {};

template <class A, class B> struct Value<std::pair<A, B>> {
    static std::pair<A, B> read(Reader& in) {
        ++in.at;
        A first = Value<A>::read(in);
        in.take(',');
        B second = Value<B>::read(in);
        ++in.at;
        return {first, second};
    }
    static void write(std::string& out, const std::pair<A, B>& value) {
        out += '(';
        Value<A>::write(out, value.first);
        out += ',';
        Value<B>::write(out, value.second);
        out += ')';
    }
};

inline void report(char kind, const std::string& text) {
    std::string line = kind + text + '\n';
    for (std::size_t done = 0; done < line.size();) {
        ssize_t wrote = ::write(3, line.data() + done, line.size() - done);
        if (wrote <= 0) std::_Exit(1);
        done += static_cast<std::size_t>(wrote);
    }
}

template <class Call, class R, class... A, std::size_t... I>
void call_once(Call call, R*, std::tuple<A...>& arguments, std::index_sequence<I...>) {
    if constexpr (std::is_void_v<R>) {
        call(std::get<I>(arguments)...);
        if constexpr (sizeof...(A) == 0) { report('=', "None"); }
        else {  // by convention a function that returns nothing changes its first argument
            std::string out;
            Value<std::tuple_element_t<0, std::tuple<A...>>>::write(out, std::get<0>(arguments));
            report('=', out);
        }
    } else {
        std::string out;
        Value<std::decay_t<R>>::write(out, call(std::get<I>(arguments)...));
        report('=', out);
    }
}

template <class R, class... A, class Call> int serve_calls(Call call) {
    for (std::string line; std::getline(std::cin, line);) {
        try {
            Reader in{line};
            in.take('[');
            bool first = true;
            auto next = [&](auto* kind) {
                if (!first) in.take(',');
                first = false;
                return Value<std::remove_pointer_t<decltype(kind)>>::read(in);
            };
            (void)next;
            std::tuple<std::decay_t<A>...> arguments{next(static_cast<std::decay_t<A>*>(nullptr))...};
            in.take(']');
            call_once(call, static_cast<std::remove_reference_t<R>*>(nullptr), arguments, std::index_sequence_for<A...>{});
        } catch (const std::bad_alloc&) {
            report('M', "in a call");
            return 1;
        } catch (const std::exception& error) {
            std::string text;
            for (const char* c = error.what(); *c && text.size() < 200; ++c)
                text += *c >= ' ' && *c < 127 ? *c : ' ';
            report('!', text);
            return 1;
        }
    }
    return 0;
}
template <class R, class... A> int serve(R (*function)(A...)) { return serve_calls<R, A...>(function); }
template <class C, class R, class... A> int serve(R (C::*method)(A...)) {
    return serve_calls<R, A...>([method](auto&... arguments) -> R { C object; return (object.*method)(arguments...); });
}
template <class C, class R, class... A> int serve(R (C::*method)(A...) const) {
    return serve_calls<R, A...>([method](auto&... arguments) -> R { C object; return (object.*method)(arguments...); });
}
}  // namespace millrace

"""One program in each language, which does what the word on its input says.

Compiling is what costs, so the same program earns every verdict but one.
"""

# ruff: noqa: E501 - a word a line

CPP = r"""
#include <bits/stdc++.h>
static long deep(long n) { volatile char c[256]; c[0] = 1; return n == 0 ? 0 : deep(n - 1) + c[0]; }
int main() {
    std::string word; std::cin >> word;
    if (word == "add") { long a, b; std::cin >> a >> b; std::cout << a + b << "\n"; }
    if (word == "deep") std::cout << deep(9000) << "\n";
    if (word == "loop") for (volatile long i = 0;; i = i + 1);
    if (word == "sleep") for (;;) pause();
    if (word == "hoard") for (std::vector<char*> v;;) { v.push_back(new char[1 << 20]); std::memset(v.back(), 1, 1 << 20); }
    if (word == "huge") { std::vector<char> v(1L << 33, 1); std::cout << v[9]; }
    if (word == "raise") throw std::runtime_error("on purpose");
    if (word == "exit") return 7;
    if (word == "recurse") std::cout << deep(-1);
    if (word == "flood") for (;;) std::cout << word << std::endl;
}
"""

RUST = r"""
use std::io::{Read, Write};
fn deep(n: i64) -> i64 { let c = std::hint::black_box([1u8; 256]); if n == 0 { 0 } else { deep(n - 1) + c[9] as i64 } }
fn main() {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[0] {
        "add" => println!("{}", words[1..].iter().map(|w| w.parse::<i64>().unwrap()).sum::<i64>()),
        "deep" => println!("{}", deep(9000)),
        "loop" => { let mut i = 0u64; loop { i = std::hint::black_box(i + 1); } }
        "sleep" => loop { std::thread::sleep(std::time::Duration::from_secs(999)); },
        "hoard" => { let mut v = Vec::new(); loop { v.push(std::hint::black_box(vec![1u8; 1 << 20])); } }
        "huge" => println!("{}", std::hint::black_box(vec![1u8; 1 << 33])[9]),
        "raise" => panic!("on purpose"),
        "exit" => std::process::exit(7),
        "recurse" => println!("{}", deep(-1)),
        "flood" => loop { let _ = std::io::stdout().write_all(b"flood\n"); },
        _ => {}
    }
}
"""

JAVASCRIPT = r"""
const [word, ...rest] = require('fs').readFileSync(0, 'utf8').split(/\s+/);
function deep(n) { return n === 0 ? 0 : deep(n - 1) + 1; }
const kept = [];
if (word === 'add') console.log(rest.filter(Boolean).reduce((sum, text) => sum + Number(text), 0));
if (word === 'deep') console.log(deep(9000));
if (word === 'loop') for (;;);
if (word === 'sleep') setInterval(() => {}, 1 << 30);
if (word === 'hoard') for (;;) kept.push(new Array(1 << 17).fill(kept.length));
if (word === 'huge') console.log(new Uint8Array(2 ** 31).fill(1)[9]);
if (word === 'raise') throw new Error('on purpose');
if (word === 'exit') process.exit(7);
if (word === 'recurse') console.log(deep(-1));
if (word === 'flood') for (;;) console.log(word);
"""

JAVA = r"""
import java.util.*;
public class Answer {
    static long deep(long n) { return n == 0 ? 0 : deep(n - 1) + 1; }
    public static void main(String[] arguments) throws Exception {
        Scanner in = new Scanner(System.in);
        String word = in.next();
        List<byte[]> kept = new ArrayList<>();
        switch (word) {
            case "add": System.out.println(in.nextLong() + in.nextLong()); break;
            case "deep": System.out.println(deep(9000)); break;
            case "loop": for (long i = 0;; i++) if (i < 0) System.out.println(i);
            case "sleep": Thread.sleep(1 << 30); break;
            case "hoard": for (;;) kept.add(new byte[1 << 20]);
            case "huge": System.out.println((new byte[Integer.MAX_VALUE - 8])[9]); break;
            case "raise": throw new IllegalStateException("on purpose");
            case "exit": System.exit(7); break;
            case "recurse": System.out.println(deep(-1)); break;
            case "flood": for (;;) System.out.println(word);
        }
    }
}
"""

GO = r"""
package main

import (
	"fmt"
	"os"
	"time"
)

type block [1 << 20]byte

func deep(n int64) int64 {
	var c [32]int64
	c[n&31] = 1
	if n == 0 {
		return 0
	}
	return deep(n-1) + c[n&31]
}

func main() {
	var word string
	fmt.Scan(&word)
	var kept []*block
	switch word {
	case "add":
		var a, b int64
		fmt.Scan(&a, &b)
		fmt.Println(a + b)
	case "deep":
		fmt.Println(deep(9000))
	case "loop":
		for i := 0; i >= 0; i = (i + 1) & 1023 {
		}
	case "sleep":
		time.Sleep(999 * time.Second)
	case "hoard":
		for {
			one := new(block)
			for i := range one {
				one[i] = 1
			}
			kept = append(kept, one)
		}
	case "huge":
		size := 1 << 33
		one := make([]byte, size)
		fmt.Println(one[9] + 1)
	case "raise":
		panic("on purpose")
	case "exit":
		os.Exit(7)
	case "recurse":
		fmt.Println(deep(-1 << 40))
	case "flood":
		for {
			fmt.Println(word)
		}
	}
}
"""

PROGRAMS = {"cpp17": CPP, "rust": RUST, "javascript": JAVASCRIPT, "java": JAVA, "go": GO}
UNFINISHED = {
    "cpp17": "int main( {",
    "rust": "fn main( {",
    "javascript": "function main( {",
    "go": "package main\nfunc main( {",
    "java": "class Answer { static void main( {",
}

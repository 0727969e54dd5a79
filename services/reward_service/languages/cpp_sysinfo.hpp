// sysinfo(2) tells how much memory other answers share, so the jail denies it. The C library asks it
// for the size of memory (qsort does) and ignores a refusal, so it finds constants here instead.
namespace millrace {
extern "C" int linked_sysinfo(unsigned long* info) noexcept __asm__("__sysinfo");
extern "C" int called_sysinfo(unsigned long* info) noexcept __asm__("sysinfo");
extern "C" __attribute__((used)) int linked_sysinfo(unsigned long* info) noexcept {
    // struct sysinfo of linux/sysinfo.h: 14 words, of which 4 is `totalram`, 13 begins with `mem_unit`.
    for (int word = 0; word < 14; ++word) info[word] = 0;
    info[4] = 1UL << 30;
    info[13] = 1;
    return 0;
}
extern "C" __attribute__((used)) int called_sysinfo(unsigned long* info) noexcept {
    return linked_sysinfo(info);
}
}  // namespace millrace

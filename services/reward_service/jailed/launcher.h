// What the parts of the launcher give each other.
#include <stdint.h>

enum { FILES = 4 };  // of a process: input, output, errors, report

int make_files(int inputs, uint64_t at, uint64_t size, int* files);
int collect(const int* files, int outputs, uint64_t* written);

void settle_all(void);
void populate(void);

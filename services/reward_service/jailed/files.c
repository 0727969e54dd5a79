// Files of a process in memory: its input, and what it writes.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher.h"

// Copies between files without a copy in memory, where a later process could find it.
static int copy(int to, int from, uint64_t at, uint64_t size) {
    off_t offset = at;
    while (size) {
        ssize_t copied = sendfile(to, from, &offset, size);
        if (copied <= 0) return -1;
        size -= copied;
    }
    return 0;
}

// A file in memory with the input, which nobody can change any more, and three empty ones.
int make_files(int inputs, uint64_t at, uint64_t size, int* files) {
    int read_only = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
    for (int n = 0; n < FILES; n++)
        if ((files[n] = memfd_create("slot", MFD_CLOEXEC | (n ? 0 : MFD_ALLOW_SEALING))) < 0) return -1;
    if (copy(files[0], inputs, at, size) || lseek(files[0], 0, SEEK_SET) < 0) return -1;
    return fcntl(files[0], F_ADD_SEALS, read_only);
}

// Appends what a process wrote to the outputs of the order.
int collect(const int* files, int outputs, uint64_t* written) {
    for (int n = 1; n < FILES; n++) {
        struct stat found;
        if (fstat(files[n], &found) || copy(outputs, files[n], 0, found.st_size)) return -1;
        written[n - 1] = found.st_size;
    }
    return 0;
}

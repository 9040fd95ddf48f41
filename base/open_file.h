/* Opening files that a third party may have made. */
#ifndef LLMC_BASE_OPEN_FILE_H
#define LLMC_BASE_OPEN_FILE_H

/* Open a file or folder for reading. Returns a descriptor, or -1 with errno. A FIFO or a terminal
 * would block the caller until another process writes to it, so only names below /dev/ may lead
 * to one: standard input, and process substitution of a shell. Else errno is EINVAL. */
int file_open(const char *path);

#endif

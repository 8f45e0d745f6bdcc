#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ // of Linux 5.14; the numbers are those of linux/mman.h
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

// Where the program begins in memory, and where its data does and ends: the linker's names.
extern char __executable_start, __data_start, edata;

// populate has the kernel map what is between two addresses. What it cannot do, it does
// when a page is used, as ever.
static void populate(char *from, char *to, int how)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t begin = (uintptr_t)from & ~(page - 1), end = (uintptr_t)to & ~(page - 1);

	madvise((void *)begin, end - begin, how);
}

__attribute__((constructor))
static void prefault(void)
{
	populate(&__executable_start, &__data_start, MADV_POPULATE_READ);
	populate(&__data_start, &edata, MADV_POPULATE_WRITE);
}

// Preloaded by `make pytest-asan`. GCC's libasan and libubsan have a report path each, but one symbol to set it, which is libasan's:
// so UBSan's reports would go to stderr, and of a keeper into a log that its test deletes. libubsan calls this before it prints.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

void __ubsan_on_report(void) {
    void* library = dlopen("libubsan.so.1", RTLD_LAZY | RTLD_NOLOAD);
    void (*set_path)(const char*) = library ? (void (*)(const char*))dlsym(library, "__sanitizer_set_report_path") : NULL;
    const char* path = getenv("OSF_UBSAN_REPORTS");
    if (set_path && path) set_path(path);
}

// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdio>
#include <ext/stdio_sync_filebuf.h>
#include <iostream>
#include <string>
#include <string_view>

#include "backend/cli/cli.h"
#include "backend/model/names.h"
#include "backend/proto/grpc_log.h"

namespace {

/// A terminal that gets text and no orders: what names and messages of run files or of other
/// machines hold beside text is shown as "\\x1b".
struct Terminal {
    int fd = -1;
    std::string rest;  ///< the beginning of a character whose end is to come

    static ssize_t write(void* self, const char* bytes, size_t size) {
        auto& [fd, rest] = *static_cast<Terminal*>(self);
        std::string text = std::exchange(rest, {}).append(bytes, size);
        const size_t whole = bulkhead::model::wholeCharacters(text);
        rest = text.substr(whole);
        const std::string shown =
            bulkhead::model::printable(std::string_view(text).substr(0, whole), /*lines=*/true);
        for (size_t at = 0; at < shown.size();) {
            const ssize_t n = ::write(fd, shown.data() + at, shown.size() - at);
            if (n <= 0) return 0;
            at += static_cast<size_t>(n);
        }
        return static_cast<ssize_t>(size);
    }
};

void guard(FILE*& stream, Terminal& terminal, int fd, int buffering) {
    if (::isatty(fd) == 0) return;
    terminal.fd = fd;
    FILE* guarded = ::fopencookie(&terminal, "w", {nullptr, &Terminal::write, nullptr, nullptr});
    if (guarded == nullptr) return;
    std::setvbuf(guarded, nullptr, buffering, BUFSIZ);
    stream = guarded;
}

}  // namespace

int main(int argc, char** argv) {
    static Terminal out;
    static Terminal err;
    guard(stdout, out, STDOUT_FILENO, _IOLBF);
    guard(stderr, err, STDERR_FILENO, _IONBF);
    static __gnu_cxx::stdio_sync_filebuf<char> through(stdout);
    std::cout.rdbuf(&through);
    bulkhead::proto::keepGrpc();
    int code = bulkhead::cli::run(argc, argv);
    const bool whole = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
    if (!whole && code == bulkhead::cli::kOk) {
        std::fputs(
            "Cannot write standard output: what was printed is not whole. Make room where it "
            "goes, or name another file.\n",
            stderr);
        code = bulkhead::cli::kInvalid;
    }
    std::fflush(nullptr);
    ::_exit(code);
}

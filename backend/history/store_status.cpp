// SPDX-License-Identifier: Apache-2.0
#include "backend/history/store_status.h"

#include <sqlite3.h>

#include "backend/common/file_system.h"
#include "backend/model/names.h"

namespace bulkhead::history {

using model::concat;

absl::Status damaged(const std::string& file, std::string_view cause) {
    return absl::DataLossError(concat(file, ": damaged (", cause,
                                      "); restore a copy, or save what can be read with sqlite3's "
                                      ".recover"));
}

absl::Status statusOf(const SQLite::Exception& error, const std::string& file) {
    const std::string cause = error.what();
    switch (error.getErrorCode() & 0xff) {
        case SQLITE_FULL:
            return absl::ResourceExhaustedError(concat(file, ": no room left on the disk",
                                                       roomAt(file),
                                                       "; free some and writing goes on"));
        case SQLITE_NOTADB:
            return absl::InvalidArgumentError(
                concat(file, ": not an SQLite file; name a file that Bulkhead wrote"));
        case SQLITE_CORRUPT:
            return damaged(file, cause);
        case SQLITE_BUSY:
        case SQLITE_LOCKED:
            return absl::UnavailableError(
                concat(file, ": locked by another program; close it or try again"));
        case SQLITE_READONLY:
        case SQLITE_PERM:
        case SQLITE_AUTH:
            return absl::PermissionDeniedError(
                concat(file, ": may not be written; check the permissions of file and folder"));
        case SQLITE_CANTOPEN:
            return absl::PermissionDeniedError(
                concat(file,
                       ": cannot be opened; check that the folder exists and may be read "
                       "and written"));
        case SQLITE_IOERR:
            return absl::UnavailableError(
                concat(file, ": the disk failed to read or write (", cause, "); check it"));
        default:
            return absl::InternalError(concat(file, ": ", cause));
    }
}

}  // namespace bulkhead::history

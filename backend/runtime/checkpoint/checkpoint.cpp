// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/common/codec.h"
#include "bulkhead/state_hash.h"

namespace bulkhead::runtime {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kShardMagic = 0x3153544b48424bull;  // "KBHKTS1"
constexpr const char* kManifestName = "manifest.json";
constexpr size_t kWriteChunk = 4 << 20;

struct ShardHeader {
    uint64_t magic = kShardMagic;
    int32_t shard = 0;
    uint64_t lineage = 0;
    uint64_t step = 0;
    uint64_t layout = 0;
    uint64_t bytes = 0;
    uint64_t hash = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("magic", self.magic);
        visit("shard", self.shard);
        visit("lineage", self.lineage);
        visit("step", self.step);
        visit("layout", self.layout);
        visit("bytes", self.bytes);
        visit("hash", self.hash);
    }
};

absl::Status systemError(const std::string& what, const fs::path& path, int error) {
    const std::string text = absl::StrCat(what, " ", path.string(), ": ", std::strerror(error));
    if (error == ENOSPC || error == EDQUOT || error == EFBIG)
        return absl::ResourceExhaustedError(
            absl::StrCat(text, "; make room or move checkpoint_dir, training goes on without it"));
    return absl::UnavailableError(text);
}

/// A file that exists under its own name only once `publish` succeeded.
class PendingFile {
  public:
    explicit PendingFile(fs::path path) : path_(std::move(path)), temporary_(path_) {
        temporary_ += ".tmp";
        fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd_ < 0) status_ = systemError("cannot create", temporary_, errno);
    }
    ~PendingFile() {
        if (fd_ >= 0) ::close(fd_);
        if (!published_) ::unlink(temporary_.c_str());
    }
    PendingFile(const PendingFile&) = delete;
    PendingFile& operator=(const PendingFile&) = delete;

    void write(const void* data, size_t bytes) {
        const char* at = static_cast<const char*>(data);
        while (status_.ok() && bytes > 0) {
            const ssize_t n = ::write(fd_, at, std::min(bytes, kWriteChunk));
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) {
                status_ = systemError("cannot write", path_, n < 0 ? errno : ENOSPC);
                return;
            }
            at += n;
            bytes -= static_cast<size_t>(n);
        }
    }

    absl::Status publish() {
        if (status_.ok() && ::fsync(fd_) != 0) status_ = systemError("cannot sync", path_, errno);
        if (status_.ok() && ::rename(temporary_.c_str(), path_.c_str()) != 0)
            status_ = systemError("cannot rename to", path_, errno);
        if (!status_.ok()) return status_;
        published_ = true;
        return syncFolder(path_.parent_path());
    }

    static absl::Status syncFolder(const fs::path& folder) {
        const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) return systemError("cannot open", folder, errno);
        const int result = ::fsync(fd);
        const int error = errno;
        ::close(fd);
        return result == 0 ? absl::OkStatus() : systemError("cannot sync", folder, error);
    }

  private:
    fs::path path_;
    fs::path temporary_;
    int fd_ = -1;
    bool published_ = false;
    absl::Status status_;
};

std::string hex(uint64_t value) {
    return absl::StrFormat("%016x", value);
}

uint64_t unhex(const json& value) {
    return std::stoull(value.get<std::string>(), nullptr, 16);
}

json toJson(const CheckpointManifest& m) {
    json files = json::array();
    for (const CheckpointFile& f : m.files)
        files.push_back({{"shard", f.shard},
                         {"name", f.name},
                         {"bytes", f.bytes},
                         {"state_hash", hex(f.hash)}});
    return {{"version", m.version},
            {"job", m.job},
            {"step", m.step},
            {"lineage", m.lineage},
            {"term", m.term},
            {"layout", m.layout},
            {"expert_shard", m.expertShard},
            {"replica", m.replica},
            {"shards", m.shards},
            {"seed", m.seed},
            {"corpus_hash", hex(m.corpusHash)},
            // Bytes of the coordinator's own; JSON holds text only.
            {"data_position", absl::BytesToHexString(m.dataPosition)},
            {"job_spec", m.jobJson},
            {"last_record", absl::BytesToHexString(encode(m.last))},
            {"unix_ns", m.unixNs},
            {"files", files}};
}

CheckpointManifest fromJson(const json& j) {
    CheckpointManifest m;
    m.version = j.at("version");
    if (m.version < 1 || m.version > kManifestVersion)
        throw std::runtime_error(absl::StrCat("its version is ", m.version,
                                              ", this program reads 1 to ", kManifestVersion));
    m.job = j.at("job");
    m.step = j.at("step");
    m.lineage = j.at("lineage");
    m.term = j.at("term");
    m.layout = j.at("layout");
    m.expertShard = j.at("expert_shard").get<std::vector<int32_t>>();
    m.replica = j.at("replica");
    m.shards = j.at("shards");
    m.seed = j.at("seed");
    m.corpusHash = unhex(j.at("corpus_hash"));
    m.dataPosition = absl::HexStringToBytes(j.at("data_position").get<std::string>());
    m.jobJson = j.at("job_spec");
    absl::StatusOr<CommitRecord> last =
        decode<CommitRecord>(absl::HexStringToBytes(j.at("last_record").get<std::string>()));
    if (!last.ok())
        throw std::runtime_error(absl::StrCat("last_record: ", last.status().message()));
    m.last = *std::move(last);
    m.unixNs = j.at("unix_ns");
    for (const json& f : j.at("files"))
        m.files.push_back({f.at("shard"), f.at("name"), f.at("bytes"), unhex(f.at("state_hash"))});
    if (m.files.size() != m.shards)
        throw std::runtime_error(
            absl::StrCat("it names ", m.files.size(), " files for ", m.shards, " shards"));
    return m;
}

}  // namespace

std::string checkpointFolder(uint64_t lineage, uint64_t step, uint64_t layout, int32_t replica) {
    return absl::StrFormat("l%04d-step%09d-layout%d-r%d", lineage, step, layout, replica);
}

absl::StatusOr<CheckpointFile> writeShardFile(const std::string& folder, int32_t shard,
                                              const StateSnapshot& snapshot) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return systemError("cannot create", folder, error.value());
    ShardHeader header;
    header.shard = shard;
    header.lineage = snapshot.lineage;
    header.step = snapshot.step;
    header.layout = snapshot.layout;
    header.bytes = snapshot.bytes.size();
    header.hash = snapshot.hash;
    const std::string head = encode(header);
    CheckpointFile result{shard, absl::StrCat("shard-", shard, ".state"),
                          head.size() + snapshot.bytes.size(), snapshot.hash};
    PendingFile file(fs::path(folder) / result.name);
    file.write(head.data(), head.size());
    file.write(snapshot.bytes.data(), snapshot.bytes.size());
    if (absl::Status s = file.publish(); !s.ok()) return s;
    return result;
}

std::string manifestText(const CheckpointManifest& manifest) {
    return toJson(manifest).dump(2) + "\n";
}

absl::StatusOr<std::string> writeManifest(const std::string& folder,
                                          const CheckpointManifest& manifest) {
    const std::string text = manifestText(manifest);
    const fs::path path = fs::path(folder) / kManifestName;
    PendingFile file(path);
    file.write(text.data(), text.size());
    if (absl::Status s = file.publish(); !s.ok()) return s;
    return path.string();
}

absl::StatusOr<CheckpointManifest> readManifest(const std::string& path) {
    std::ifstream in(path);
    if (!in)
        return absl::NotFoundError(
            absl::StrCat(path, ": no such checkpoint manifest (", std::strerror(errno), ")"));
    return parseManifest(path, std::string(std::istreambuf_iterator<char>(in), {}));
}

absl::StatusOr<CheckpointManifest> parseManifest(const std::string& path, const std::string& text) {
    try {
        return fromJson(json::parse(text));
    } catch (const std::exception& e) {
        return absl::DataLossError(absl::StrCat(path, " is no checkpoint manifest: ", e.what(),
                                                "; resume from an older checkpoint"));
    }
}

absl::StatusOr<std::shared_ptr<StateSnapshot>> readShardFile(const std::string& manifestPath,
                                                             const CheckpointManifest& manifest,
                                                             int32_t shard) {
    const auto listed = std::find_if(manifest.files.begin(), manifest.files.end(),
                                     [&](const CheckpointFile& f) { return f.shard == shard; });
    if (listed == manifest.files.end())
        return absl::InvalidArgumentError(
            absl::StrCat(manifestPath, " has ", manifest.shards, " shards and none of number ",
                         shard, "; resume with the shard count it was written with"));
    const fs::path path = fs::path(manifestPath).parent_path() / listed->name;
    const auto damaged = [&](const std::string& why) {
        return absl::DataLossError(
            absl::StrCat(path.string(), " ", why, "; resume from an older checkpoint"));
    };
    std::ifstream in(path, std::ios::binary);
    if (!in) return damaged("is missing or unreadable");
    std::string head(encode(ShardHeader{}).size(), '\0');
    in.read(head.data(), static_cast<std::streamsize>(head.size()));
    absl::StatusOr<ShardHeader> header = decode<ShardHeader>(head);
    if (!in || !header.ok() || header->magic != kShardMagic) return damaged("is no shard file");
    if (header->step != manifest.step || header->shard != shard || header->hash != listed->hash ||
        header->bytes + head.size() != listed->bytes)
        return damaged("is not the file its manifest names");
    auto state = std::make_shared<StateSnapshot>();
    state->lineage = header->lineage;
    state->step = header->step;
    state->layout = manifest.layout;
    state->expertShard = manifest.expertShard;
    state->last = manifest.last;
    state->bytes.resize(header->bytes);
    in.read(reinterpret_cast<char*>(state->bytes.data()),
            static_cast<std::streamsize>(state->bytes.size()));
    if (!in) return damaged("ends too early");
    state->hash = bulkhead_state_hash(state->bytes.data(), state->bytes.size());
    const uint64_t written =
        manifest.version == 1 ? XXH3_64bits(state->bytes.data(), state->bytes.size()) : state->hash;
    if (written != listed->hash) return damaged("does not have the hash its manifest names");
    return state;
}

std::vector<std::string> listCheckpoints(const std::string& directory) {
    std::vector<std::string> found;
    std::error_code error;
    for (auto it = fs::directory_iterator(directory, error);
         !error && it != fs::directory_iterator(); it.increment(error))
        if (const fs::path manifest = it->path() / kManifestName; fs::exists(manifest, error))
            found.push_back(manifest.string());
    std::sort(found.begin(), found.end());
    return found;
}

std::vector<protocol::StoredCheckpoint> storedCheckpoints(const FileSystem& files,
                                                          const std::string& directory) {
    std::vector<protocol::StoredCheckpoint> found;
    for (const std::string& name : files.list(directory)) {
        const std::string folder = absl::StrCat(directory, "/", name);
        const std::string path = absl::StrCat(folder, "/", kManifestName);
        const absl::StatusOr<std::string> text = files.read(path);
        if (!text.ok()) continue;
        absl::StatusOr<CheckpointManifest> m = parseManifest(path, *text);
        if (!m.ok()) continue;
        protocol::StoredCheckpoint stored{path, m->last, m->layout, m->expertShard, {}};
        for (const CheckpointFile& file : m->files) {
            if (!files.exists(absl::StrCat(folder, "/", file.name))) break;
            stored.hashes.push_back(file.hash);
        }
        if (stored.hashes.size() == m->shards) found.push_back(std::move(stored));
    }
    return found;
}

void discardUnfinished(const std::string& folder) {
    const fs::path current(folder);
    const std::string name = current.filename().string();
    const std::string replica = name.substr(name.rfind("-r") + 1);
    std::vector<fs::path> leftovers;
    std::error_code error;
    for (auto it = fs::directory_iterator(current.parent_path(), error);
         !error && it != fs::directory_iterator(); it.increment(error)) {
        const std::string other = it->path().filename().string();
        if (other < name && other.ends_with("-" + replica) &&
            !fs::exists(it->path() / kManifestName, error))
            leftovers.push_back(it->path());
    }
    for (const fs::path& path : leftovers) fs::remove_all(path, error);
}

void discardOwnCheckpoint(const std::string& directory, const std::string& manifestPath) {
    const fs::path folder = fs::path(manifestPath).parent_path();
    if (!folder.empty() && folder.parent_path() == fs::path(directory))
        discardCheckpoint(folder.string());
}

void discardCheckpoint(const std::string& folder) {
    std::error_code ignored;
    // A power cut must not bring it back without its files.
    if (fs::remove(fs::path(folder) / kManifestName, ignored))
        (void)PendingFile::syncFolder(folder);
    fs::remove_all(folder, ignored);
}

}  // namespace bulkhead::runtime

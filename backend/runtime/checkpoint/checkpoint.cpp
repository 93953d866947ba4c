// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/checkpoint/checkpoint.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/common/codec.h"
#include "backend/runtime/checkpoint/tensor_table.h"
#include "bulkhead/state_hash.h"

namespace bulkhead::runtime {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kShardMagic = 0x3153544b48424bull;  // "KBHKTS1"
constexpr const char* kManifestName = "manifest.json";

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

/// Stands behind the state, before the local state; not there when that is empty.
struct LocalHeader {
    uint64_t bytes = 0;
    uint64_t hash = 0;  ///< XXH3-64
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("bytes", self.bytes);
        visit("hash", self.hash);
    }
};

std::string_view textOf(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

absl::Status explained(const absl::Status& status) {
    if (!absl::IsResourceExhausted(status)) return status;
    return absl::ResourceExhaustedError(
        absl::StrCat(status.message(), "; make room or move checkpoint_dir"));
}

/// `path` exists from here on, for good, or nothing of it does.
absl::Status publish(FileSystem& files, const std::string& path,
                     std::initializer_list<std::string_view> parts) {
    const std::string temporary = path + ".tmp";
    const absl::Status status = [&] {
        auto file = files.open(temporary);
        if (!file.ok()) return file.status();
        absl::Status s = (*file)->truncate(0);
        for (const std::string_view part : parts)
            if (s.ok()) s = (*file)->append(part);
        if (s.ok()) s = (*file)->sync();
        if (s.ok()) s = files.rename(temporary, path);
        return s;
    }();
    if (!status.ok()) {
        (void)files.remove(temporary);
        return explained(status);
    }
    return files.syncFolder(folderOf(path));
}

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
    json all = {{"version", m.version},
                {"job", m.job},
                {"run", m.run},
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
    if (!m.records.empty()) all["records"] = absl::BytesToHexString(encode(m.records));
    return all;
}

CheckpointManifest fromJson(const json& j) {
    CheckpointManifest m;
    m.version = j.at("version");
    if (m.version < 1 || m.version > kManifestVersion)
        throw std::runtime_error(absl::StrCat("its version is ", m.version,
                                              ", this program reads 1 to ", kManifestVersion));
    m.job = j.at("job");
    m.run = j.value("run", "");  // older ones do not say
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
    if (j.contains("records")) {
        auto records = decode<std::vector<CommitRecord>>(
            absl::HexStringToBytes(j.at("records").get<std::string>()));
        if (!records.ok())
            throw std::runtime_error(absl::StrCat("records: ", records.status().message()));
        m.records = *std::move(records);
    }
    m.unixNs = j.at("unix_ns");
    for (const json& f : j.at("files"))
        m.files.push_back({f.at("shard"), f.at("name"), f.at("bytes"), unhex(f.at("state_hash"))});
    if (m.files.size() != m.shards)
        throw std::runtime_error(
            absl::StrCat("it names ", m.files.size(), " files for ", m.shards, " shards"));
    return m;
}

}  // namespace

std::string checkpointFolder(uint64_t lineage, uint64_t step, uint64_t layout, int32_t replica,
                             uint32_t incarnation) {
    return absl::StrFormat("l%04d-step%09d-layout%d-r%d-i%d", lineage, step, layout, replica,
                           incarnation);
}

absl::Status checkIntact(const StateSnapshot& snapshot) {
    if (bulkhead_state_hash(snapshot.bytes.data(), snapshot.bytes.size()) == snapshot.hash)
        return absl::OkStatus();
    return absl::InternalError(absl::StrCat("the state of step ", snapshot.step,
                                            " changed since it was hashed: memory of this rank is "
                                            "damaged"));
}

absl::StatusOr<CheckpointFile> writeShardFile(FileSystem& files, const std::string& folder,
                                              int32_t shard, const StateSnapshot& snapshot) {
    if (absl::Status s = checkIntact(snapshot); !s.ok()) return s;
    if (absl::Status s = files.makeFolder(folder); !s.ok()) return explained(s);
    ShardHeader header;
    header.shard = shard;
    header.lineage = snapshot.lineage;
    header.step = snapshot.step;
    header.layout = snapshot.layout;
    header.bytes = snapshot.bytes.size();
    header.hash = snapshot.hash;
    const std::string head = encode(header);
    const std::string_view local = textOf(snapshot.local);
    const std::string localHead =
        local.empty() ? ""
                      : encode(LocalHeader{local.size(), XXH3_64bits(local.data(), local.size())});
    CheckpointFile result{shard, absl::StrCat("shard-", shard, ".state"),
                          head.size() + snapshot.bytes.size() + localHead.size() + local.size(),
                          snapshot.hash};
    const std::string path = absl::StrCat(folder, "/", result.name);
    if (snapshot.tensors != nullptr)
        if (absl::Status s = publish(files, tensorTablePath(path), {*snapshot.tensors}); !s.ok())
            return s;
    if (absl::Status s = publish(files, path, {head, textOf(snapshot.bytes), localHead, local});
        !s.ok())
        return s;
    return result;
}

std::string manifestText(const CheckpointManifest& manifest) {
    return toJson(manifest).dump(2) + "\n";
}

absl::StatusOr<std::string> writeManifest(FileSystem& files, const std::string& folder,
                                          const CheckpointManifest& manifest) {
    for (const CheckpointFile& file : manifest.files) {
        std::byte last{};
        if (absl::Status s = files.read(absl::StrCat(folder, "/", file.name), file.bytes - 1,
                                        std::span(&last, 1));
            !s.ok())
            return s;
    }
    const std::string path = absl::StrCat(folder, "/", kManifestName);
    // The folder's own name is not durable because the files in it are.
    if (absl::Status s = files.syncFolder(folderOf(folder)); !s.ok()) return s;
    if (absl::Status s = publish(files, path, {manifestText(manifest)}); !s.ok()) return s;
    return path;
}

absl::Status checkIsMeant(const std::string& path, const CheckpointManifest& manifest,
                          uint64_t step, const std::vector<uint64_t>& hashes) {
    if (step != 0 && manifest.step != step)
        return absl::DataLossError(absl::StrCat(path, " holds step ", manifest.step,
                                                " where the job's log has one of step ", step,
                                                "; put back the folder that was there"));
    const bool same =
        hashes.empty() ||
        std::equal(manifest.files.begin(), manifest.files.end(), hashes.begin(), hashes.end(),
                   [](const CheckpointFile& file, uint64_t hash) { return file.hash == hash; });
    if (!same)
        return absl::DataLossError(absl::StrCat(
            path, " holds another state of step ", manifest.step,
            " than the job's log has, another run's perhaps; put back the folder that was there"));
    return absl::OkStatus();
}

absl::Status checkSameText(const std::string& path, const CheckpointManifest& manifest,
                           uint64_t corpusHash, const std::string& newest) {
    if (manifest.corpusHash == 0 || manifest.corpusHash == corpusHash) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(path, " was trained on a text of hash ", hex(manifest.corpusHash),
                     ", the job's text has hash ", hex(corpusHash),
                     "; put back what changed last: ", newest, "; or start a new run from step 0"));
}

/// A file that is larger than any manifest is not read.
static absl::StatusOr<std::string> manifestText(const FileSystem& files, const std::string& path) {
    constexpr uint64_t kMostBytes = 64 << 20;
    const absl::StatusOr<uint64_t> bytes = files.size(path);
    if (bytes.ok() && *bytes > kMostBytes)
        return absl::ResourceExhaustedError(
            absl::StrCat(path, " has ", *bytes, " bytes; a manifest has at most ", kMostBytes));
    return files.read(path);
}

absl::StatusOr<CheckpointManifest> readManifest(const FileSystem& files, const std::string& path) {
    const absl::StatusOr<std::string> text = manifestText(files, path);
    if (!text.ok())
        return absl::NotFoundError(
            absl::StrCat("no such checkpoint manifest: ", text.status().message()));
    return parseManifest(path, *text);
}

absl::StatusOr<CheckpointManifest> parseManifest(const std::string& path, const std::string& text) {
    const auto wrong = [&](absl::string_view what) {
        return absl::DataLossError(absl::StrCat(path, " is no checkpoint manifest: ", what));
    };
    try {
        const json parsed = json::parse(text);
        if (!parsed.is_object())
            return wrong(absl::StrCat("a JSON ", parsed.type_name(), ", expected an object"));
        return fromJson(parsed);
    } catch (const json::parse_error& e) {
        return wrong(absl::StrCat("not JSON: error at byte ", e.byte));
    } catch (const json::exception& e) {
        // The library's name of the error stands in front: "[json.exception.type_error.302] ".
        const absl::string_view what = e.what();
        const size_t name = what.find("] ");
        return wrong(name == absl::string_view::npos ? what : what.substr(name + 2));
    } catch (const std::exception& e) {
        return wrong(e.what());
    }
}

absl::StatusOr<std::shared_ptr<StateSnapshot>> readShardFile(const FileSystem& files,
                                                             const std::string& manifestPath,
                                                             const CheckpointManifest& manifest,
                                                             int32_t shard) {
    const auto listed = std::find_if(manifest.files.begin(), manifest.files.end(),
                                     [&](const CheckpointFile& f) { return f.shard == shard; });
    if (listed == manifest.files.end())
        return absl::InvalidArgumentError(
            absl::StrCat(manifestPath, " has ", manifest.shards, " shards and none of number ",
                         shard, "; resume with the shard count it was written with"));
    const std::string path = absl::StrCat(folderOf(manifestPath), "/", listed->name);
    const auto damaged = [&](const std::string& why) {
        return absl::DataLossError(absl::StrCat(path, " ", why));
    };
    const auto bytesOf = [](auto& content) { return std::as_writable_bytes(std::span(content)); };
    std::string head(encode(ShardHeader{}).size(), '\0');
    const absl::Status begun = files.read(path, 0, bytesOf(head));
    if (!begun.ok() && !absl::IsOutOfRange(begun)) return damaged("is missing or unreadable");
    absl::StatusOr<ShardHeader> header = decode<ShardHeader>(head);
    if (!begun.ok() || !header.ok() || header->magic != kShardMagic)
        return damaged("is no shard file");
    // Every word that is wrong: of an edited manifest it is one, of another file several.
    std::string wrong;
    const auto compare = [&](const char* name, const auto& is, const auto& expected) {
        if (is != expected)
            absl::StrAppend(&wrong, wrong.empty() ? "" : ", ", name, " ", is, ", expected ",
                            expected);
    };
    compare("shard", header->shard, shard);
    compare("lineage", header->lineage, manifest.lineage);
    compare("step", header->step, manifest.step);
    compare("layout", header->layout, manifest.layout);
    const uint64_t end = header->bytes + head.size();
    if (end < head.size() || end > listed->bytes) compare("bytes", end, listed->bytes);
    compare("state_hash", hex(header->hash), hex(listed->hash));
    if (!wrong.empty())
        return damaged(absl::StrCat("is not the file that ", manifestPath, " names: ", wrong));
    auto state = std::make_shared<StateSnapshot>();
    state->lineage = header->lineage;
    state->step = header->step;
    state->layout = manifest.layout;
    state->expertShard = manifest.expertShard;
    state->last = manifest.last;
    state->bytes.resize(header->bytes);
    if (!files.read(path, head.size(), state->bytes).ok()) return damaged("ends too early");
    state->hash = bulkhead_state_hash(state->bytes.data(), state->bytes.size());
    const uint64_t written =
        manifest.version == 1 ? XXH3_64bits(state->bytes.data(), state->bytes.size()) : state->hash;
    if (written != listed->hash)
        return damaged(absl::StrCat("is damaged: the hash of its state is ", hex(written),
                                    ", expected ", hex(listed->hash)));
    if (listed->bytes == end) return state;
    std::string localHead(encode(LocalHeader{}).size(), '\0');
    const absl::Status more = files.read(path, end, bytesOf(localHead));
    absl::StatusOr<LocalHeader> local = decode<LocalHeader>(localHead);
    if (!more.ok() || !local.ok() || local->bytes != listed->bytes - end - localHead.size())
        return damaged("ends otherwise than its manifest says");
    state->local.resize(local->bytes);
    if (!files.read(path, end + localHead.size(), state->local).ok())
        return damaged("ends too early");
    if (XXH3_64bits(state->local.data(), state->local.size()) != local->hash)
        return damaged("is damaged: its local state has another hash than was written");
    return state;
}

absl::Status readShardBytes(const FileSystem& files, const std::string& manifestPath,
                            const CheckpointFile& file, uint64_t offset, std::span<std::byte> to) {
    return files.read(absl::StrCat(folderOf(manifestPath), "/", file.name),
                      encode(ShardHeader{}).size() + offset, to);
}

std::vector<std::string> listCheckpoints(const FileSystem& files, const std::string& directory) {
    std::vector<std::string> found;
    for (const std::string& name : files.list(directory))
        if (std::string path = absl::StrCat(directory, "/", name, "/", kManifestName);
            files.exists(path))
            found.push_back(std::move(path));
    return found;
}

absl::Status checkFiles(const FileSystem& files, const std::string& manifestPath,
                        const CheckpointManifest& manifest) {
    for (const CheckpointFile& file : manifest.files) {
        const std::string path = absl::StrCat(folderOf(manifestPath), "/", file.name);
        const auto bytes = files.size(path);
        if (!bytes.ok()) return bytes.status();
        if (*bytes < file.bytes)
            return absl::DataLossError(
                absl::StrCat(path, " has ", *bytes, " bytes of ", file.bytes));
    }
    return absl::OkStatus();
}

std::string inventoryOf(const FileSystem& files, const std::string& directory) {
    std::string all;
    for (const std::string& name : files.list(directory)) {
        absl::StrAppend(&all, name, "\n");
        const std::string folder = absl::StrCat(directory, "/", name);
        for (const std::string& file : files.list(folder))
            absl::StrAppend(&all, " ", file, " ",
                            files.size(absl::StrCat(folder, "/", file)).value_or(0), "\n");
    }
    return all;
}

std::vector<protocol::StoredCheckpoint> storedCheckpoints(const FileSystem& files,
                                                          const std::string& directory) {
    std::vector<protocol::StoredCheckpoint> found;
    for (const std::string& name : files.list(directory)) {
        const std::string folder = absl::StrCat(directory, "/", name);
        const std::string path = absl::StrCat(folder, "/", kManifestName);
        const absl::StatusOr<std::string> text = manifestText(files, path);
        if (!text.ok()) continue;
        absl::StatusOr<CheckpointManifest> m = parseManifest(path, *text);
        if (!m.ok()) continue;
        protocol::StoredCheckpoint stored{path, m->last, m->layout, m->expertShard, {}};
        stored.run = m->run;
        if (auto ledger = decode<protocol::LedgerState>(m->dataPosition);
            ledger.ok() && !m->dataPosition.empty())
            stored.ledger = *std::move(ledger);
        stored.records = std::move(m->records);
        for (const CheckpointFile& file : m->files) stored.hashes.push_back(file.hash);
        if (checkFiles(files, path, *m).ok()) found.push_back(std::move(stored));
    }
    return found;
}

std::optional<CheckpointPlace> newestFolder(const FileSystem& files, const std::string& directory) {
    std::optional<CheckpointPlace> newest;
    for (const std::string& name : files.list(directory)) {
        uint64_t lineage = 0, step = 0;
        if (std::sscanf(name.c_str(), "l%" SCNu64 "-step%" SCNu64, &lineage, &step) != 2) continue;
        if (!newest || std::pair(newest->lineage, newest->step) <= std::pair(lineage, step))
            newest = CheckpointPlace{absl::StrCat(directory, "/", name), lineage, step};
    }
    return newest;
}

void discardUnfinished(FileSystem& files, const std::string& folder) {
    const std::string directory = folderOf(folder);
    const std::string current = fs::path(folder).filename().string();
    const size_t at = current.rfind("-r");
    const std::string replica = current.substr(at, current.rfind("-i") + 2 - at);  // of any life
    for (const std::string& name : files.list(directory)) {
        const std::string other = absl::StrCat(directory, "/", name);
        if (name < current && name.find(replica) != std::string::npos &&
            !files.exists(absl::StrCat(other, "/", kManifestName)))
            (void)files.removeFolder(other);
    }
}

void discardOwnCheckpoint(FileSystem& files, const std::string& directory,
                          const std::string& manifestPath) {
    const std::string folder = folderOf(manifestPath);
    if (!folder.empty() && fs::path(folder).parent_path() == fs::path(directory))
        discardCheckpoint(files, folder);
}

void discardCheckpoint(FileSystem& files, const std::string& folder) {
    // A power cut must not bring it back without its files.
    if (files.remove(absl::StrCat(folder, "/", kManifestName)).ok()) (void)files.syncFolder(folder);
    (void)files.removeFolder(folder);
}

}  // namespace bulkhead::runtime

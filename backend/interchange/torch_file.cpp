// SPDX-License-Identifier: Apache-2.0
#include "backend/interchange/torch_file.h"

#include <array>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "backend/model/json.h"

namespace bulkhead::interchange {
namespace {

using runtime::PathWord;

constexpr const char* kRoot = "archive/";

template <class T>
void put(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

constexpr std::array<uint32_t, 256> kCrcTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) != 0 ? 0xedb88320u : 0u);
        table[i] = c;
    }
    return table;
}();

uint32_t crc32(std::string_view bytes) {
    uint32_t c = ~0u;
    for (const char byte : bytes) c = kCrcTable[(c ^ static_cast<uint8_t>(byte)) & 0xff] ^ (c >> 8);
    return ~c;
}

/// Stored entries, the data of each at a multiple of 64 bytes, as torch.save has them.
class ZipWriter {
  public:
    ZipWriter(OutputFile* out, uint64_t zip64From) : out_(*out), zip64From_(zip64From) {}

    absl::Status add(const std::string& name, std::string_view data) {
        const Entry entry{name, crc32(data), data.size(), out_.size()};
        const bool large = data.size() >= zip64From_;
        std::string extra;
        if (large) {
            put<uint16_t>(extra, kZip64Extra);
            put<uint16_t>(extra, 16);
            put<uint64_t>(extra, data.size());
            put<uint64_t>(extra, data.size());
        }
        constexpr uint64_t kHead = 30, kPadHead = 4, kAlign = 64;
        const uint64_t begin = out_.size() + kHead + name.size() + extra.size() + kPadHead;
        const auto pad = static_cast<uint16_t>((kAlign - begin % kAlign) % kAlign);
        put<uint16_t>(extra, kPadExtra);
        put<uint16_t>(extra, pad);
        extra.append(pad, 'Z');
        std::string head;
        put<uint32_t>(head, 0x04034b50);
        put<uint16_t>(head, large ? kZip64Version : 0);
        common(head, entry, large);
        put<uint16_t>(head, static_cast<uint16_t>(extra.size()));
        entries_.push_back(entry);
        for (const std::string_view part :
             {std::string_view(head), std::string_view(name), std::string_view(extra), data})
            if (absl::Status s = out_.append(part); !s.ok()) return s;
        return absl::OkStatus();
    }

    absl::Status finish() {
        const uint64_t begin = out_.size();
        for (const Entry& entry : entries_)
            if (absl::Status s = out_.append(centralRecord(entry)); !s.ok()) return s;
        return out_.append(endRecords(begin, out_.size() - begin));
    }

  private:
    static constexpr uint16_t kZip64Extra = 1, kPadExtra = 0x4246, kZip64Version = 45;
    struct Entry {
        std::string name;
        uint32_t crc = 0;
        uint64_t size = 0, offset = 0;
    };

    /// The fields from the flags to the name's length, which both records have.
    static void common(std::string& head, const Entry& entry, bool large) {
        const auto size = large ? ~0u : static_cast<uint32_t>(entry.size);
        for (int i = 0; i < 4; ++i) put<uint16_t>(head, 0);  // flags, method, time, date
        put<uint32_t>(head, entry.crc);
        put<uint32_t>(head, size);
        put<uint32_t>(head, size);
        put<uint16_t>(head, static_cast<uint16_t>(entry.name.size()));
    }

    std::string centralRecord(const Entry& entry) const {
        const bool large = entry.size >= zip64From_, far = entry.offset >= zip64From_;
        std::string extra;
        if (large || far) {
            put<uint16_t>(extra, kZip64Extra);
            put<uint16_t>(extra, static_cast<uint16_t>((large ? 16 : 0) + (far ? 8 : 0)));
            if (large) put<uint64_t>(extra, entry.size);
            if (large) put<uint64_t>(extra, entry.size);
            if (far) put<uint64_t>(extra, entry.offset);
        }
        std::string head;
        put<uint32_t>(head, 0x02014b50);
        const uint16_t version = large || far ? kZip64Version : 0;
        put<uint16_t>(head, version);
        put<uint16_t>(head, version);
        common(head, entry, large);
        put<uint16_t>(head, static_cast<uint16_t>(extra.size()));
        for (int i = 0; i < 3; ++i) put<uint16_t>(head, 0);  // comment, disk, attributes
        put<uint32_t>(head, 0);
        put<uint32_t>(head, far ? ~0u : static_cast<uint32_t>(entry.offset));
        return head + entry.name + extra;
    }

    std::string endRecords(uint64_t begin, uint64_t bytes) const {
        constexpr uint16_t kMostEntries = 0xffff;
        const bool large =
            begin >= zip64From_ || bytes >= zip64From_ || entries_.size() >= kMostEntries;
        std::string end;
        if (large) {
            put<uint32_t>(end, 0x06064b50);
            put<uint64_t>(end, 44);
            put<uint16_t>(end, kZip64Version);
            put<uint16_t>(end, kZip64Version);
            put<uint64_t>(end, 0);  // disks
            put<uint64_t>(end, entries_.size());
            put<uint64_t>(end, entries_.size());
            put<uint64_t>(end, bytes);
            put<uint64_t>(end, begin);
            put<uint32_t>(end, 0x07064b50);
            put<uint32_t>(end, 0);
            put<uint64_t>(end, begin + bytes);
            put<uint32_t>(end, 1);
        }
        const auto count = large ? kMostEntries : static_cast<uint16_t>(entries_.size());
        put<uint32_t>(end, 0x06054b50);
        put<uint32_t>(end, 0);  // disks
        put<uint16_t>(end, count);
        put<uint16_t>(end, count);
        put<uint32_t>(end, large ? ~0u : static_cast<uint32_t>(bytes));
        put<uint32_t>(end, large ? ~0u : static_cast<uint32_t>(begin));
        put<uint16_t>(end, 0);
        return end;
    }

    OutputFile& out_;
    const uint64_t zip64From_;
    std::vector<Entry> entries_;
};

/// Storage of a dtype in torch; null: none.
const char* storageOf(const std::string& dtype) {
    static const std::map<std::string, const char*> kStorages = {
        {"F64", "DoubleStorage"},    {"F32", "FloatStorage"}, {"F16", "HalfStorage"},
        {"BF16", "BFloat16Storage"}, {"I64", "LongStorage"},  {"I32", "IntStorage"},
        {"I16", "ShortStorage"},     {"I8", "CharStorage"},   {"U8", "ByteStorage"},
        {"BOOL", "BoolStorage"},
    };
    const auto found = kStorages.find(dtype);
    return found == kStorages.end() ? nullptr : found->second;
}

/// Opcodes of a pickle of protocol 2, those alone that every weights_only reader knows.
class Pickler {
  public:
    std::string take(const TorchValue& root) {
        out_ = "\x80\x02";
        value(root);
        return std::move(out_) + ".";
    }

  private:
    void text(std::string_view value) {
        out_ += 'X';
        put<uint32_t>(out_, static_cast<uint32_t>(value.size()));
        out_ += value;
    }
    void integer(int64_t value) {
        if (value >= INT32_MIN && value <= INT32_MAX) {
            out_ += 'J';
            put<int32_t>(out_, static_cast<int32_t>(value));
            return;
        }
        out_ += "\x8a\x08";
        put<int64_t>(out_, value);
    }
    void real(double value) {
        const auto bits = std::bit_cast<uint64_t>(value);
        out_ += 'G';
        for (int shift = 56; shift >= 0; shift -= 8) out_ += static_cast<char>(bits >> shift);
    }
    void tuple(const std::vector<uint64_t>& values) {
        out_ += '(';
        for (const uint64_t value : values) integer(static_cast<int64_t>(value));
        out_ += 't';
    }
    void tensor(const TorchTensor& tensor) {
        uint64_t count = 1;
        std::vector<uint64_t> strides(tensor.shape.size());
        for (size_t i = tensor.shape.size(); i-- > 0;) {
            strides[i] = count;
            count *= tensor.shape[i];
        }
        out_ += "ctorch._utils\n_rebuild_tensor_v2\n((";
        text("storage");
        out_ += absl::StrCat("ctorch\n", storageOf(tensor.dtype), "\n");
        text(absl::StrCat(tensor.storage));
        text("cpu");
        integer(static_cast<int64_t>(count));
        out_ += "tQ";
        integer(0);
        tuple(tensor.shape);
        tuple(strides);
        out_ +=
            "\x89"
            "ccollections\nOrderedDict\n)RtR";
    }
    static bool isList(const TorchValue::Dict& dict) {
        for (size_t i = 0; i < dict.items.size(); ++i)
            if (dict.items[i].key != PathWord(uint64_t{i})) return false;
        return dict.list || !dict.items.empty();
    }
    void container(const TorchValue::Dict& dict) {
        if (isList(dict)) {
            out_ += ']';
            for (const auto& [index, item] : dict.items) {
                value(item);
                out_ += 'a';
            }
            return;
        }
        out_ += dict.ordered ? "ccollections\nOrderedDict\n)R" : "}";
        if (dict.items.empty()) return;
        out_ += '(';
        for (const auto& [key, item] : dict.items) {
            if (const auto* name = std::get_if<std::string>(&key))
                text(*name);
            else
                integer(static_cast<int64_t>(std::get<uint64_t>(key)));
            value(item);
        }
        out_ += 'u';
    }
    void value(const TorchValue& of) {
        std::visit(
            [&](const auto& held) {
                using T = std::remove_cvref_t<decltype(held)>;
                if constexpr (std::is_same_v<T, std::monostate>)
                    out_ += 'N';
                else if constexpr (std::is_same_v<T, bool>)
                    out_ += held ? "\x88" : "\x89";
                else if constexpr (std::is_same_v<T, int64_t>)
                    integer(held);
                else if constexpr (std::is_same_v<T, double>)
                    real(held);
                else if constexpr (std::is_same_v<T, std::string>)
                    text(held);
                else if constexpr (std::is_same_v<T, TorchTensor>)
                    tensor(held);
                else
                    container(held);
            },
            of.value);
    }

    std::string out_;
};

TorchValue valueOf(const model::Json& json) {
    TorchValue out;
    if (json.is_boolean()) out.value = json.get<bool>();
    if (json.is_number_integer()) out.value = json.get<int64_t>();
    if (json.is_number_float()) out.value = json.get<double>();
    if (json.is_string()) out.value = json.get<std::string>();
    if (json.is_structured()) out.value = TorchValue::Dict();
    auto* dict = std::get_if<TorchValue::Dict>(&out.value);
    for (size_t i = 0; json.is_array() && i < json.size(); ++i)
        (*dict)[uint64_t{i}] = valueOf(json[i]);
    if (json.is_object())
        for (const auto& item : json.items()) (*dict)[item.key()] = valueOf(item.value());
    if (dict != nullptr) dict->list = json.is_array();
    return out;
}

}  // namespace

TorchValue& TorchValue::at(const std::vector<PathWord>& path) {
    TorchValue* place = this;
    for (const PathWord& word : path) {
        if (!std::holds_alternative<Dict>(place->value)) place->value = Dict();
        place = &std::get<Dict>(place->value)[word];
    }
    return *place;
}

TorchValue& TorchValue::Dict::operator[](const PathWord& key) {
    const auto [place, fresh] = places.try_emplace(key, items.size());
    if (fresh) items.push_back({key, TorchValue()});
    return items[place->second].value;
}

TorchValue TorchValue::ofJson(const std::string& json) {
    return valueOf(model::Json::parse(json));
}

TorchValue TorchValue::ofNumber(const std::string& json) {
    TorchValue out = ofJson(json);
    double value = 0;
    if (std::holds_alternative<std::string>(out.value) &&
        model::json_detail::doubleFromJson(model::Json::parse(json), value))
        out.value = value;
    return out;
}

absl::Status checkTorchDtype(const std::string& name, const std::string& dtype) {
    if (storageOf(dtype) != nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        name, " has dtype ", dtype,
        ", which torch.save has no storage of its own for; export --to safetensors instead"));
}

absl::Status writeTorchFile(OutputFile& out, const TorchValue& root, size_t storages,
                            const StorageBytes& bytesOf,
                            const std::map<std::string, std::string>& more, uint64_t zip64From) {
    ZipWriter zip(&out, zip64From);
    absl::Status status = zip.add(absl::StrCat(kRoot, "data.pkl"), Pickler().take(root));
    if (status.ok()) status = zip.add(absl::StrCat(kRoot, "byteorder"), "little");
    for (const auto& [name, text] : more)
        if (status.ok()) status = zip.add(absl::StrCat(kRoot, name), text);
    for (size_t i = 0; status.ok() && i < storages; ++i) {
        const absl::StatusOr<std::vector<std::byte>> bytes = bytesOf(i);
        if (!bytes.ok()) return bytes.status();
        status = zip.add(absl::StrCat(kRoot, "data/", i),
                         {reinterpret_cast<const char*>(bytes->data()), bytes->size()});
    }
    if (status.ok()) status = zip.add(absl::StrCat(kRoot, "version"), "3\n");
    return status.ok() ? zip.finish() : status;
}

}  // namespace bulkhead::interchange

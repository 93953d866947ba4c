// SPDX-License-Identifier: Apache-2.0
#include "backend/client/export_call.h"

#include "backend/client/connection.h"

namespace bulkhead::client {
namespace {

/// Owns itself from StartCall to OnDone.
class ExportReader final : public grpc::ClientReadReactor<v1::ExportChunk> {
  public:
    ExportReader(Connection& connection, const ExportRequest& request,
                 std::function<void(std::string)> chunk, Reply<Done> reply)
        : hold_(connection),
          connection_(&connection),
          chunk_(std::move(chunk)),
          reply_(std::move(reply)) {
        request_.set_run(request.run);
        request_.set_what(request.what == ExportWhat::kEvents ? v1::EXPORT_WHAT_EVENTS
                                                              : v1::EXPORT_WHAT_LEDGER);
        request_.set_format(request.format == ExportFormat::kCsv ? v1::EXPORT_FORMAT_CSV
                                                                 : v1::EXPORT_FORMAT_JSON_LINES);
        request_.set_from_step(request.fromStep);
        request_.set_to_step(request.toStep);
    }

    /// No deadline: a long run takes as long as it takes, and the caller sees pieces arrive.
    void begin() {
        connection_->prepare(context_);
        connection_->began(&context_);
        connection_->runs->async()->Export(&context_, &request_, this);
        StartRead(&piece_);
        StartCall();
    }

    void OnReadDone(bool ok) override {
        if (!ok) return;
        chunk_(std::move(*piece_.mutable_data()));
        piece_.Clear();
        StartRead(&piece_);
    }

    void OnDone(const grpc::Status& status) override {
        if (status.ok())
            reply_(Done{});
        else
            reply_(failureOf(status, "Cannot export run " + request_.run(),
                             connection_->options.target));
        connection_->ended(&context_);
        const Connection::Hold hold = std::move(hold_);
        delete this;
    }

  private:
    Connection::Hold hold_;
    Connection* connection_;
    grpc::ClientContext context_;
    v1::ExportRequest request_;
    v1::ExportChunk piece_;
    std::function<void(std::string)> chunk_;
    Reply<Done> reply_;
};

}  // namespace

void startExport(Connection& connection, ExportRequest request,
                 std::function<void(std::string)> chunk, Reply<Done> reply) {
    (new ExportReader(connection, request, std::move(chunk), std::move(reply)))->begin();
}

}  // namespace bulkhead::client

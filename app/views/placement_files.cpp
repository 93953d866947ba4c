// SPDX-License-Identifier: GPL-3.0-only
#include <QDir>
#include <QDragEnterEvent>
#include <QFileDialog>
#include <QMimeData>
#include <QSaveFile>

#include "app/views/job_commands.h"
#include "app/views/placement_view.h"
#include "backend/planner/live/live_file.h"

/// Plans from and to files; placement_view.cpp has the page itself.
namespace bulkhead::ui {
namespace {

struct EngineFilter {
    planner::Engine engine;
    const char* words;
};
constexpr EngineFilter kFilters[] = {
    {planner::Engine::kBulkhead, "Bulkhead plan (*.json)"},
    {planner::Engine::kSglang, "SGLang, --init-expert-location (*.json)"},
    {planner::Engine::kTrtllm, "TensorRT-LLM, moe_config.load_balancer (*.yaml)"},
    {planner::Engine::kAscend, "vLLM-Ascend, expert_map_path (*.json)"}};

/// The first local plan file among what is dragged; empty: none.
QString planIn(const QMimeData& data) {
    for (const QUrl& url : data.urls())
        if (url.isLocalFile() && url.toLocalFile().endsWith(QStringLiteral(".json")))
            return url.toLocalFile();
    return {};
}

}  // namespace

void PlacementView::dragEnterEvent(QDragEnterEvent* event) {
    if (hasContent() && !planIn(*event->mimeData()).isEmpty()) event->acceptProposedAction();
}

void PlacementView::dropEvent(QDropEvent* event) {
    event->acceptProposedAction();
    importFrom(planIn(*event->mimeData()));
}

void PlacementView::importFrom(const QString& path) {
    desk_.proposeFile(path, group_->isChecked());
}

std::optional<QString> PlacementView::write(const QString& path, planner::Engine engine) {
    showPlacement();
    if (!placement_) return std::nullopt;
    const planner::LiveJob& job = placement_->job;
    const auto& proposal = desk_.proposal();
    const auto complain = [this](const std::string& why) {
        context_.commands.complain(client::localFailure(
            client::FailureCode::kInvalid, tr("Cannot export the placement").toStdString(), why));
        return std::nullopt;
    };
    const absl::StatusOr<planner::Plan> plan = planner::fileOf(
        job, context_.feed.state().model, proposal ? proposal->expertShard : job.expertShard,
        proposal ? proposal->domainShare : job.domainShare);
    if (!plan.ok()) return complain(std::string(plan.status().message()));
    const absl::StatusOr<planner::EngineFile> text = planner::engineFile(*plan, engine);
    if (!text.ok()) return complain(std::string(text.status().message()));
    QSaveFile file(path);
    const auto size = static_cast<qint64>(text->text.size());
    if (!file.open(QIODevice::WriteOnly) || file.write(text->text.data(), size) != size ||
        !file.commit())
        return complain(
            tr("%1: %2; choose another place").arg(path, file.errorString()).toStdString());
    QString notes;
    for (const std::string& note : text->notes) notes += QStringLiteral("; ") + toQt(note);
    return notes;
}

void PlacementView::exportTo(const QString& path, planner::Engine engine) {
    if (const std::optional<QString> notes = write(path, engine))
        context_.commands.tell(tr("Placement written to %1").arg(path) + *notes);
}

QString PlacementView::fileToDrag() {
    const QString path = dragged_.filePath(QStringLiteral("plan.json"));
    return write(path, planner::Engine::kBulkhead) ? path : QString();
}

void PlacementView::askImport() {
    auto* dialog = new QFileDialog(this, tr("Import a plan"), QDir::homePath(),
                                   tr("Bulkhead plan (*.json);;All files (*)"));
    dialog->setAttribute(Qt::WA_DeleteOnClose);
    connect(dialog, &QFileDialog::fileSelected, this, &PlacementView::importFrom);
    dialog->open();
}

void PlacementView::askExport() {
    QStringList filters;
    for (const EngineFilter& filter : kFilters) filters << tr(filter.words);
    auto* dialog = new QFileDialog(this, tr("Export the placement to"),
                                   QDir::home().filePath(QStringLiteral("plan.json")));
    dialog->setNameFilters(filters);
    dialog->setAttribute(Qt::WA_DeleteOnClose);
    dialog->setAcceptMode(QFileDialog::AcceptSave);
    connect(dialog, &QFileDialog::fileSelected, this, [this, dialog, filters](const QString& path) {
        const auto at = std::max<qsizetype>(filters.indexOf(dialog->selectedNameFilter()), 0);
        exportTo(path, kFilters[at].engine);
    });
    dialog->open();
}

}  // namespace bulkhead::ui

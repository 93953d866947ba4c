// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QDialog>
#include <QString>
#include <QStringList>
#include <functional>
#include <utility>
#include <vector>

namespace bulkhead::ui {

/// A question before something happens. `effect` says what will be different afterwards.
struct ConfirmRequest {
    struct Figure {
        QString name, before, after;
    };
    QString title;  ///< names action and target: "Drain replica 2"
    QString effect;
    QString warning;  ///< cost beyond the obvious, empty if none
    std::vector<Figure> figures;
    /// Buttons, left to right, the first being the deed itself; Cancel is added.
    QStringList choices;
    bool destructive = true;
    /// Has to be typed before the first choice can be taken; empty: nothing.
    QString typedName;
};

/// The one seam through which the console asks. A test answers instead of a person.
class Confirmer {
  public:
    static constexpr int kCancelled = -1;
    virtual ~Confirmer() = default;
    /// `answer` gets the index of the choice, or kCancelled; at once or later, on the GUI thread.
    virtual void ask(QWidget* parent, const ConfirmRequest& request,
                     std::function<void(int)> answer) = 0;
};

/// Asks with a window-modal dialog, without a loop of its own.
class DialogConfirmer final : public Confirmer {
  public:
    void ask(QWidget* parent, const ConfirmRequest& request,
             std::function<void(int)> answer) override;
};

class ConfirmDialog final : public QDialog {
    Q_OBJECT
  public:
    ConfirmDialog(const ConfirmRequest& request, QWidget* parent);
    int choice() const { return choice_; }

  private:
    int choice_ = Confirmer::kCancelled;
};

}  // namespace bulkhead::ui

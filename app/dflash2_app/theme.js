// Light, dark or as the system is: kept in this browser, applied before the first paint and again by Quasar.
window.dflashTheme = {
  modes: ["auto", "light", "dark"],
  get() {
    try {
      const mode = localStorage.getItem("dflash2-theme");
      return this.modes.includes(mode) ? mode : "auto";
    } catch {
      return "auto"; // the browser keeps nothing
    }
  },
  isDark() {
    return this.get() === "dark" || (this.get() === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  },
  next() {
    const mode = this.modes[(this.modes.indexOf(this.get()) + 1) % this.modes.length];
    try {
      localStorage.setItem("dflash2-theme", mode);
    } catch {
      /* it holds for this page only */
    }
    this.apply();
  },
  apply() {
    const mode = this.get();
    document.documentElement.style.background = this.isDark() ? "#14181c" : "#f6f7f9";
    document.documentElement.style.colorScheme = this.isDark() ? "dark" : "light";
    document.documentElement.dataset.theme = mode;
    if (window.Quasar) Quasar.Dark.set(mode === "auto" ? "auto" : mode === "dark");
    for (const button of document.querySelectorAll("[data-theme-switch]"))
      button.setAttribute("aria-label", `Colours: ${mode}. Press to change`);
  },
};
dflashTheme.apply();
document.addEventListener("DOMContentLoaded", () => dflashTheme.apply());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dflashTheme.apply());

// To the clipboard, also where the page is not on a secure address.
window.dflashCopy = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = Object.assign(document.createElement("textarea"), { value: text });
    (document.querySelector("[role=dialog]") ?? document.body).append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  Quasar.Notify.create({ message: "Copied", timeout: 1500 });
};

// Changes of a form that are not saved.
addEventListener("beforeunload", (event) => {
  if (window.dflashUnsaved) event.preventDefault();
});
